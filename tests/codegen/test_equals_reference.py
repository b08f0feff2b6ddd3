"""The compiled torch target and the interpreter agree: alone, in chunks, and in ragged batches with requests that join late."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from samples import METHODS, PARAMS, arguments, tensors

from sparsec.dsl import tree as t
from sparsec.dsl.parser import parse
from sparsec.dsl.source import load_source
from sparsec.pipeline import Compilation
from sparsec.replay import ReplayError, ReplayRequest, model_facts, replay
from sparsec.replay_torch import run_batch
from sparsec.trace import Trace
from sparsec_runtime.rope import Rope

PROMPT, NEW = 50, 9
SPECS = sorted((Path(__file__).parent / "specs").glob("*.sparse"))


def assert_same(mine: Trace, other: Trace) -> None:
    """Equal sets, equal reads, outputs within fp32 rounding."""
    for name in ("kept", "attended"):
        for step, (a, b) in enumerate(zip(getattr(mine, name), getattr(other, name), strict=True)):
            for layer, (heads, others) in enumerate(zip(a, b, strict=True)):
                for head, (x, y) in enumerate(zip(heads, others, strict=True)):
                    assert torch.equal(x, y), f"{name} differs at step {step}, layer {layer}, head {head}: {x.tolist()} and {y.tolist()}"
    torch.testing.assert_close(mine.output, other.output, rtol=1e-4, atol=1e-5)


def variants() -> list[tuple[str, str, object]]:
    """Every value of every choice and bool of every method that is not its default."""
    found: list[tuple[str, str, object]] = []
    for method in METHODS:
        for param in parse(load_source(method)).method.of(t.Param):
            assert isinstance(param.default, t.Expr)
            if param.unit.text == "bool":
                found.append((method, param.name.text, param.default.name.text != "true"))
            elif param.unit.text == "choice":
                words = [item.name.text for item in param.bound.low.items]
                found += [(method, param.name.text, word) for word in words if word != param.default.name.text]
    return found


@pytest.mark.parametrize("chunk", [None, 17, 1])
@pytest.mark.parametrize("method", METHODS)
def test_a_method_keeps_reads_and_returns_what_the_interpreter_says(method: str, chunk: int | None) -> None:
    data = tensors(PROMPT + NEW, seed=1)
    call = dict(prompt_len=PROMPT, chunk=chunk, **data, **arguments(method))
    assert_same(replay(method, target="torch", **call), replay(method, target="reference", **call))


@pytest.mark.parametrize(("method", "param", "value"), variants(), ids=lambda value: str(value))
def test_every_choice_of_a_method_agrees_with_the_interpreter(method: str, param: str, value: object) -> None:
    data = tensors(PROMPT + NEW, seed=2)
    call = dict(prompt_len=PROMPT, chunk=17, **data, **arguments(method, **{param: value}))
    assert_same(replay(method, target="torch", **call), replay(method, target="reference", **call))


@pytest.mark.parametrize("target", ["torch", "reference"])
def test_mass_of_queries_that_were_not_given_is_refused_with_the_hook(target: str) -> None:
    data = tensors(PROMPT, seed=3)
    with pytest.raises(ReplayError, match="after_prefill_attention .*before q_start"):
        replay("h2o", target=target, prompt_len=PROMPT - 2, q_start=30, **{**data, "q": data["q"][:, 30:]}, **arguments("h2o"))


@pytest.mark.parametrize("chunk", [None, 17])
@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_constructs_beyond_the_shipped_methods_agree_with_the_interpreter(spec: Path, chunk: int | None) -> None:
    call = dict(prompt_len=PROMPT, chunk=chunk, **tensors(PROMPT + NEW, seed=4))
    assert_same(replay(str(spec), target="torch", **call), replay(str(spec), target="reference", **call))


@pytest.mark.parametrize("method", METHODS)
def test_a_request_in_a_ragged_batch_gets_what_it_gets_alone(method: str) -> None:
    prompts, news, joins = (50, 7, 29, 1), (9, 12, 5, 10), (0, 2, 0, 4)
    given = arguments(method)
    rope = Rope.plain(10000.0, 16) if "rope" in given else None
    requests = [
        ReplayRequest(**tensors(prompt + new, seed=n), prompt_len=prompt, chunk=17, q_start=0, rotated=rope is None, rope=rope, record=())
        for n, (prompt, new) in enumerate(zip(prompts, news))
    ]
    compilation = Compilation(load_source(method), PARAMS[method], model_facts(requests[0]))
    mixed = run_batch(compilation, [(_own_params(compilation, n), request) for n, request in enumerate(requests)], joins)
    for n, (request, trace) in enumerate(zip(requests, mixed)):
        alone = run_batch(compilation, [(_own_params(compilation, n), request)])[0]
        assert_same(trace, alone)


def _own_params(compilation: Compilation, n: int) -> dict[str, object]:
    """Each request has a budget of its own, where the method has one."""
    params = dict(compilation.dynamic_params)
    return {**params, "budget": int(str(params["budget"])) + 4 * n} if "budget" in params else params


def test_recorded_states_lets_summaries_and_codes_agree_with_the_interpreter() -> None:
    names = {"h2o": ("score", "worth"), "snapkv": ("smooth",), "quest": ("kmin", "reach"), "kivi": ("kq", "kq.scale", "kq.min", "vq", "packed.rows")}
    for method, record in names.items():
        call = dict(prompt_len=PROMPT, record=record, **tensors(PROMPT + NEW, seed=3), **arguments(method))
        mine, other = (replay(method, target=target, **call).recorded for target in ("torch", "reference"))
        for name in record:
            for step, (a, b) in enumerate(zip(mine[name], other[name], strict=True)):
                for layer, (x, y) in enumerate(zip(a, b, strict=True)):
                    assert (x is None) is (y is None), f"{method}.{name} at step {step}, layer {layer}: only one target recorded it"
                    if x is not None:
                        _assert_same_values(x, y, f"{method}.{name} at step {step}, layer {layer}")


def _assert_same_values(mine, other, where: str) -> None:
    if mine.positions is None:
        order = [mine.letters.index(letter) for letter in other.letters]
        torch.testing.assert_close(mine.values.permute(order).double(), other.values.double(), rtol=1e-4, atol=1e-5, msg=where)
        return
    for head in range(mine.positions.shape[0]):
        a, b = mine.at(head), other.at(head)
        assert a.keys() == b.keys(), f"{where}: positions differ"
        for position, value in a.items():
            torch.testing.assert_close(value.double(), b[position].double(), rtol=1e-4, atol=1e-5, msg=f"{where}, position {position}")
