"""Values that the host tells without asking the device: they are those of the device, and hooks of a prompt read it once a step, for all layers."""

from __future__ import annotations

import pytest
import torch
from engines import METHODS, SMALL, engine, ids_of_rows, tiny_model
from sparsec_runtime.known import Known
from sparsec_runtime.prompts import prefill
from sparsec_runtime.step import Step
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sparsec.model_facts import from_shape
from sparsec.pipeline import Compilation, load_manager

READS = ("cpu", "tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__")


def known(values: object, dtype: torch.dtype = torch.int64) -> Known:
    made = torch.tensor(values, dtype=dtype)
    return Known.of(made.clone(), lambda: made)


def test_what_is_computed_from_known_values_is_known() -> None:
    a, b, ranks = known([5, 9]), known([3, 10]), known(list(range(12)))
    rows = (ranks < a[:, None]) & ~(ranks < torch.minimum(a, b - 2)[:, None])
    for value in (rows, rows.sum(-1), torch.where(a > b, a * 0.5, 2.0), torch.stack([a, b // 4]), rows.expand(3, 2, 12).any(-1), 7 - a, rows.to(torch.int32)):
        assert type(value) is Known and torch.equal(value.host, value.as_subclass(Tensor))
    assert rows.sum(-1).tolist() == [4, 1] and bool((a > b).any()) and int(a.max()) == 9


def test_what_is_computed_from_others_is_not() -> None:
    a, other = known([5, 9]), torch.tensor([1, 2])
    for value in (a + other, other < a, torch.where(a > 6, other, a), torch.stack([a, other]), a.sort().values):
        assert type(value) is Tensor
    assert torch.zeros(2).masked_fill_(a > 6, 1.0).tolist() == [0, 1], "a mask like any other"


def test_what_the_host_would_not_see_is_refused() -> None:
    a = known([5, 9])
    for change in (lambda: a.add_(1), lambda: a.__setitem__(0, 1), lambda: a.__iadd__(1)):
        with pytest.raises(AssertionError, match="the host knows"):
            change()


class Waits(TorchDispatchMode):
    """Counts what would wait for a device: reads of tensors that the host does not know, and masks whose entries are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: list[str] = []
        for name in READS:
            monkeypatch.setattr(Tensor, name, self._counted(name, getattr(Tensor, name)))

    def _counted(self, name: str, read):
        def counted(tensor: Tensor, *args, **kwargs):
            if type(tensor) is Tensor and name != "numpy":  # of what `cpu` gave
                self.found.append(name)
            return read(tensor, *args, **kwargs)

        return counted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        indexes = args[1] if isinstance(args[1] if len(args) > 1 else None, list | tuple) and str(func).startswith("aten.index") else ()
        masks = [index for index in indexes if index is not None and index.dtype == torch.bool]
        if masks or "nonzero" in str(func) or "masked_select" in str(func):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that the host would wait for."""
    monkeypatch.setattr(Step, "apart", True)


@pytest.mark.parametrize("method", METHODS)
def test_hooks_of_a_prompt_ask_the_device_at_most_once_a_step(method: str, apart: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    compilation = Compilation.load(method, params=SMALL[method], model=from_shape(model.shape))
    manager = load_manager(compilation)(model.shape, model.rope, model.dtype, "cpu", 4096, max_requests=2, chunk=64)
    handle = manager.open("long", manager.resolve_params(compilation.dynamic_params, prompt_tokens=200))
    ids, waits, steps = torch.randint(0, model.shape.vocab, (200,)), Waits(monkeypatch), []
    with waits:
        prefill(model, manager, handle, ids, 64, lambda start, end: (steps.append(list(waits.found)), waits.found.clear()))
    assert len(steps) == 4 and all(found in ([], ["cpu"], ["cpu", "__bool__"]) for found in steps), steps  # a flag: whether moved rows were the oldest
    assert (manager.rows(handle) < 200).any() == manager.LAYOUT.evicts


@pytest.mark.parametrize("method", METHODS)
def test_a_device_apart_gives_the_same_ids(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = (5, 40, 70)
    wanted = ids_of_rows(engine(method), lengths, 6)
    monkeypatch.setattr(Step, "apart", True)
    assert ids_of_rows(engine(method), lengths, 6) == wanted


@pytest.mark.parametrize("method", ["kivi", "snapkv", "h2o"])
def test_layers_that_hold_equal_counts_send_them_once(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sends: list[tuple[object, ...]] = []
    monkeypatch.setattr("sparsec_runtime.step.sent", lambda values, device: (sends.append((values.shape, values.tobytes())), torch.from_numpy(values))[1])
    model = tiny_model()
    compilation = Compilation.load(method, params=SMALL[method], model=from_shape(model.shape))
    manager = load_manager(compilation)(model.shape, model.rope, model.dtype, "cpu", 4096, max_requests=2, chunk=64)
    handle, steps = manager.open("long", manager.resolve_params(compilation.dynamic_params, prompt_tokens=200)), []
    prefill(model, manager, handle, torch.randint(0, model.shape.vocab, (200,)), 64, lambda start, end: (steps.append(list(sends)), sends.clear()))
    assert manager.LAYOUT.scope == "shared" and all(step and len(step) == len(set(step)) for step in steps)
