"""Params that make a method work within about a hundred tokens: small counts, every choice in turn, drawn by seed.

Draws one value from one param's range; which ranges there are, and what depends on what, is `subject`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from sparsec.reference.values import Scalar

SMALL = 24  # rows that a count of tokens exceeds its lower bound by, at most
SPREAD = {"tokens": SMALL, "bytes": SMALL, "pages": 3, "bits": 2, "int": 2}
LARGEST_LISTED = 16  # of listed numbers, those up to here are drawn, so that blocks and pages fill up


@dataclass(frozen=True, slots=True)
class Range:
    """What a param may be, given the params before it. `high` None: no limit. `choices`: listed values, else ()."""

    unit: str
    low: Scalar | None
    high: Scalar | None
    choices: tuple[Scalar, ...]
    default: Scalar

    def holds(self, value: Scalar) -> bool:
        """Whether a value is legal."""
        if self.choices:
            return value in self.choices
        if self.unit in ("bool", "choice", "layer_set"):
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


def draw(name: str, legal: Range, seed: int, layers: int, attempt: int = 0) -> Scalar:
    """A legal value. Listed values take turns over the seeds, so that a few seeds cover them all. `attempt` draws the others anew."""
    rng = Random(f"{seed}:{name}:{attempt}")
    if legal.unit == "bool":
        return in_turn(name, (False, True), seed)
    if legal.choices:
        return in_turn(name, _small_ones(legal.choices), seed)
    if legal.unit == "layer_set":
        return _layers(legal.default, layers, rng)
    if legal.unit == "ratio":
        return _ratio(legal, rng)
    return _count(legal, rng)


def in_turn(name: str, values: Sequence[Scalar], seed: int) -> Scalar:
    """One of the values; each block of len(values) seeds takes every one once, in an order of its own per param."""
    block, place = divmod(seed, len(values))
    order = list(values)
    Random(f"{block}:{name}").shuffle(order)
    return order[place]


def largest(legal: Range, at_least: int) -> Scalar | None:
    """A size that is no limit for `at_least` rows: None where the range does not reach so far."""
    if legal.choices:
        return max(legal.choices) if max(legal.choices) >= at_least else None
    if legal.high is None:
        return max(at_least, legal.low or 0)
    return legal.high if legal.high >= at_least else None


def _small_ones(choices: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    if not all(isinstance(choice, (int, float)) for choice in choices):
        return choices
    small = tuple(choice for choice in choices if choice <= LARGEST_LISTED)
    return small or (min(choices),)


def _count(legal: Range, rng: Random) -> int:
    """Near the lower bound; now and then the bound itself, or the default where that is small too."""
    low = int(legal.low or 0)
    high = low + SPREAD[legal.unit]
    if legal.high is not None:
        high = min(high, int(legal.high))
    kind = rng.random()
    if kind < 0.15:
        return low
    if kind < 0.4 and low <= legal.default <= high:
        return int(legal.default)
    return rng.randint(low, max(low, high))


def _ratio(legal: Range, rng: Random) -> float:
    low = float(legal.low if legal.low is not None else 0.0)
    high = float(legal.high if legal.high is not None else max(1.0, low))
    return round(rng.choice((low, high, (low + high) / 2, rng.uniform(low, high))), 3)


def _layers(default: Scalar, layers: int, rng: Random) -> frozenset[int]:
    """The default where the tiny model has those layers, or some layers from the first on."""
    assert isinstance(default, frozenset), f"a layer set is a set: {default!r}"
    if rng.random() < 0.3 and default and max(default) < layers:
        return default
    return frozenset({0} | {layer for layer in range(1, layers) if rng.random() < 0.4})
