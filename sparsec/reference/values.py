"""Named axes: a tensor with one index letter per axis, so that broadcasting goes by letters. Knows nothing of methods.

Numbers without letters are plain Python numbers; a set is a bool tensor with its members' letters in `base`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

_FIRST, _LAST = "lihgtspb", "cdxy"


def ordered(letters: set[str]) -> tuple[str, ...]:
    """Letters in the canonical order: l i h g t s p b, others, c d x y."""

    def place(letter: str) -> tuple[int, str]:
        if letter in _FIRST:
            return _FIRST.index(letter), letter
        return (len(_FIRST) + 1 + _LAST.index(letter), letter) if letter in _LAST else (len(_FIRST), letter)

    return tuple(sorted(letters, key=place))


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """`data` has one axis per letter. `support` (same letters) says where the value is defined; None is everywhere.

    `base` is non-empty for a set: `data` is then bool, and base names the letters that its members range over.
    """

    data: Tensor
    letters: tuple[str, ...]
    support: Tensor | None = None
    base: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.data.ndim == len(self.letters), f"{tuple(self.data.shape)} does not fit the letters {self.letters}"

    def over(self, letters: tuple[str, ...]) -> Tensor:
        """The data with exactly these axes, size 1 where the value does not depend on a letter."""
        return _spread(self.data, self.letters, letters)

    def support_over(self, letters: tuple[str, ...]) -> Tensor | None:
        return None if self.support is None else _spread(self.support, self.letters, letters)

    def size(self, letter: str) -> int:
        return self.data.shape[self.letters.index(letter)]

    def renamed(self, names: dict[str, str]) -> Value:
        return replace(
            self,
            letters=tuple(names.get(letter, letter) for letter in self.letters),
            base=tuple(names.get(letter, letter) for letter in self.base),
        )

    def picked(self, letter: str, index: int) -> Term:
        """The value at one index of a letter."""
        axis = self.letters.index(letter)
        left = self.letters[:axis] + self.letters[axis + 1 :]
        support = None if self.support is None else self.support.select(axis, index)
        return settled(Value(self.data.select(axis, index), left, support, self.base))


Scalar = int | float | bool | str | frozenset
Term = Value | Scalar


def _spread(data: Tensor, have: tuple[str, ...], want: tuple[str, ...]) -> Tensor:
    assert set(have) <= set(want), f"a value over {have} cannot be laid out over {want}"
    data = data.permute([have.index(letter) for letter in want if letter in have])
    for axis, letter in enumerate(want):
        if letter not in have:
            data = data.unsqueeze(axis)
    return data


def settled(value: Value) -> Term:
    """A value without letters becomes a Python number."""
    return value if value.letters or value.base else value.data.item()


def tensor_of(term: Term, letters: tuple[str, ...]) -> Tensor:
    """Any number as a tensor over `letters`; Python floats as 0-dim float64, so that they never round integers to float32."""
    if isinstance(term, Value):
        return term.over(letters)
    return torch.tensor(term, dtype=torch.float64 if isinstance(term, float) else None)


def letters_of(*terms: Term) -> tuple[str, ...]:
    return ordered({letter for term in terms if isinstance(term, Value) for letter in term.letters})


def is_set(term: Term) -> bool:
    return isinstance(term, Value) and bool(term.base)


def elementwise(op: Callable[..., Tensor], *terms: Term) -> Term:
    """`op` on tensors that are aligned by letters; the result is defined where every operand is."""
    letters = letters_of(*terms)
    data = op(*(tensor_of(term, letters) for term in terms))
    support = None
    for term in terms:
        if isinstance(term, Value) and term.support is not None:
            mine = term.support_over(letters)
            support = mine if support is None else support & mine
    if support is not None:
        support = support.expand(data.shape)
    return settled(Value(data, letters, support))


def full(term: Term, letters: tuple[str, ...], sizes: dict[str, int]) -> Tensor:
    """The term's data expanded to every axis of `letters`."""
    return tensor_of(term, letters).expand([sizes[letter] for letter in letters])
