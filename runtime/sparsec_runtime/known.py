"""Small tensors of the device whose values the host can tell too, so that a hook's conditions and window sizes are read without waiting for the device.

Counts and params come from the host. What is computed from known values and Python numbers alone is known as well: where somebody reads it, the operations
are done again on the host. Everything else is a tensor like any other; masks of rows are, which would take the host long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

LARGEST = 1 << 12  # values of a result that the host would compute again
_READS = frozenset({"__bool__", "__int__", "__float__", "__index__", "tolist", "item", "cpu", "numpy"})
_IN_PLACE = frozenset(f"__i{name}__" for name in "add sub mul truediv floordiv mod and or xor".split()) | {"__setitem__"}
_PURE = frozenset(
    f"__{name}__" for name in "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod neg abs gt ge lt le eq ne and rand or ror xor invert getitem".split()
) | frozenset(
    "abs add sub mul div floor_divide remainder floor ceil round neg gt ge lt le eq ne logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not any all "
    "clamp clamp_min clamp_max minimum maximum where gather select to long int double float bool expand expand_as unsqueeze squeeze view reshape flatten amax amin max min sum stack".split()
)


class Known(Tensor):
    """In-place operations are refused: they would change what the device has alone."""

    _host: Tensor | None
    _tell: Callable[[], Tensor]

    @staticmethod
    def of(values: Tensor, tell: Callable[[], Tensor]) -> Known:
        """values: on any device; tell: gives the same on the CPU, when somebody reads them."""
        known = values.as_subclass(Known)
        known._host, known._tell = None, tell
        return known

    @property
    def host(self) -> Tensor:
        """The values on the CPU."""
        if self._host is None:
            self._host = self._tell()
        return self._host

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: Sequence[type], args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name in _READS:
                return func(*_on_host(args), **kwargs)
            changes = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
            assert not (changes and args and isinstance(args[0], Known)), f"{name} changes a value that the host knows"
            result = func(*args, **kwargs)
            if name not in _PURE or not isinstance(result, Tensor) or result.numel() > LARGEST or not _all_known((*args, *kwargs.values())):
                return result
            return Known.of(result, lambda: _again(func, args, kwargs))


def _again(func: Callable[..., Tensor], args: tuple[object, ...], kwargs: Mapping[str, object]) -> Tensor:
    """The operation on the host's values."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*_on_host(args), **dict(zip(kwargs, _on_host(tuple(kwargs.values())))))


def _all_known(args: tuple[object, ...]) -> bool:
    """Whether the host has every tensor among the arguments, and none of them names a device."""
    return all(
        isinstance(arg, Known) or (_all_known(tuple(arg)) if isinstance(arg, tuple | list) else not isinstance(arg, Tensor | torch.device | str)) for arg in args
    )


def _on_host(args: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(arg.host if isinstance(arg, Known) else type(arg)(_on_host(tuple(arg))) if isinstance(arg, tuple | list) else arg for arg in args)
