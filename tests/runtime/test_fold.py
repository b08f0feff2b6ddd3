"""Hooks after sampling that run for many layers at once: what they decide is what they decide layer by layer, and they read no more at once than they may."""

from __future__ import annotations

import pytest
import torch
from engines import METHODS, SMALL, add, drain, engine, ids_of, prompt
from sparsec_runtime import fold
from sparsec_runtime.cache import CacheManager
from sparsec_runtime.engine import Engine
from sparsec_runtime.hooks import AFTER_SAMPLING
from sparsec_runtime.ops import pick

LENGTHS = (70, 9, 33, 130)
VARIANTS = [(method, {}) for method in METHODS] + [
    ("snapkv", {"evict_in_prefill": True}), ("pyramidkv", {"evict_in_prefill": True}), ("pyramidkv", {"rounding": "floor_step"}),
    ("ada_snapkv", {"evict_in_prefill": True}), ("ada_snapkv", {"uniform_layers": 2}), ("ada_snapkv", {"split": "ranking"}),
    ("h2o", {"positions": "cache", "evict_in_prefill": True}), ("kivi", {"flush": "blocks"}),
]  # fmt: skip


def finished(made: Engine) -> tuple[dict[str, list[int]], list[object]]:
    """Ids of each request, and rows and bytes that they hold once all prompts are read."""
    for n, length in enumerate(LENGTHS):
        add(made, prompt(length, seed=n), 12, name=f"row {n}")
    while any(made.progress(f"row {n}") < length for n, length in enumerate(LENGTHS)):
        made.step()
    handles = [made._requests[f"row {n}"].handle for n in range(len(LENGTHS))]
    held = [(made.manager.rows(handle).tolist(), made.manager.bytes(handle)) for handle in handles]
    return {name: ids_of(outputs) for name, outputs in drain(made).items()}, held


def count_calls(made: Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The layers of each call of a hook after sampling."""
    seen: list[list[int]] = []
    for hook in AFTER_SAMPLING:
        if hook in made.manager.hooks_bound():
            real = getattr(made.manager, hook)
            monkeypatch.setattr(made.manager, hook, lambda view, real=real: (seen.append(sorted(set(view.layer.tolist()))), real(view)))
    return seen


@pytest.mark.parametrize(("method", "more"), VARIANTS, ids=str)
def test_many_layers_at_once_decide_as_layer_by_layer(method: str, more: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    together, apart = (engine(method, params={**SMALL[method], **more}) for _ in range(2))
    calls = count_calls(together, monkeypatch)
    found = finished(together)
    assert all(len(layers) > 1 for layers in calls)
    monkeypatch.setattr(fold, "ON_CPU", 0)
    calls = count_calls(apart, monkeypatch)
    assert finished(apart) == found
    assert all(len(layers) == 1 for layers in calls)


def test_a_longer_prompt_runs_for_fewer_layers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine("snapkv", "tiny-qwen3")
    layers, heads, dim = made.manager.storage.layers, made.manager.storage.heads, made.manager.storage.head_dim
    assert layers == 4
    row = heads * dim * 8 + SMALL["snapkv"]["window"] * heads * int(made.manager.model_facts["group"]) * 4
    monkeypatch.setattr(fold, "ON_CPU", 32 * 3 * row)
    calls = count_calls(made, monkeypatch)
    for tokens, expected in ((8, [[0, 1, 2, 3]]), (32, [[0, 1, 2], [3]]), (48, [[0, 1], [2, 3]]), (90, [[0], [1], [2], [3]])):
        calls.clear()
        add(made, prompt(tokens, seed=tokens), 1, name=f"{tokens} tokens")
        drain(made)
        assert calls == expected


def test_layers_of_different_bindings_do_not_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    kind = type("Kind", (CacheManager,), {
        "GUARDS": {"end_of_prompt": (lambda layer, facts: layer < 2, lambda layer, facts: layer == 3), "finish_step": (lambda layer, facts: layer != 1,)},
        "end_of_prompt": lambda self, view: seen.append(("prompt", view.layer.tolist())),
        "finish_step": lambda self, view: seen.append(("step", view.layer.tolist())),
    })  # fmt: skip
    made = engine("dense", "tiny-qwen3")
    rest = made.manager
    made.manager = kind(made.model.shape, made.model.rope, made.model.dtype, "cpu", pool_tokens=64)
    assert rest.storage.layers == 4
    add(made, prompt(5, seed=0), 1)
    drain(made)
    assert seen == [("prompt", [0]), ("prompt", [1]), ("prompt", [3]), ("step", [0]), ("step", [2]), ("step", [3])]


def test_each_row_picks_its_own_entry() -> None:
    values = torch.arange(24).view(2, 3, 4)
    assert pick(values, torch.tensor([2, 0]), 1).tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert pick(values, torch.tensor([3, 1]), 2).tolist() == [[3, 7, 11], [13, 17, 21]]
    assert pick(values, 1, 1).tolist() == values[:, 1].tolist()
