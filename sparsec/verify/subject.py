"""A method under verification: makes one case per seed, with a tiny model, small params and traces around the method's own thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.check import check
from sparsec.dsl.parser import parse
from sparsec.dsl.source import load_source
from sparsec.failures import CommandError
from sparsec.reference.values import Scalar
from sparsec.verify.case import Case
from sparsec.verify.params import draw
from sparsec.verify.ranges import facts_of, parsed, range_of
from sparsec.verify.traces import KINDS, Inputs, Shape, make_inputs

LONGEST = 96  # prompt tokens
ATTEMPTS = 20  # draws until the params fit each other and the model
NEW = (6, 20)  # decode steps
LONGEST_DECODE = 28


@dataclass(frozen=True, slots=True)
class Subject:
    """`pinned`: params that the user fixed, as text."""

    path: str
    checked: Checked
    pinned: Mapping[str, str]

    @classmethod
    def load(cls, method: str, pinned: Mapping[str, str]) -> Subject:
        source = load_source(method)
        checked = check(parse(source), source)
        known = [param.name.text for param in checked.method.of(t.Param)]
        for name in pinned:
            if name not in known:
                raise CommandError(f"unknown param '{name}'; this method has: {', '.join(known) or 'none'}", exit_code=2)
        return cls(checked.source.path, checked, pinned)

    @property
    def method(self) -> t.Method:
        return self.checked.method

    @property
    def name(self) -> str:
        return self.method.name.text

    def case(self, seed: int) -> Case:
        """The case of a seed. Draws that the method refuses for this model are drawn again."""
        for attempt in range(ATTEMPTS):
            rng = Random(f"{seed}:{attempt}")
            shape = _shape(rng, self.method)
            chunk = rng.choice((4, 7, 16, 32))
            params = self._params(seed, shape, chunk, attempt)
            case = Case.build(self.checked, seed, shape, params, chunk, frozenset(self.pinned))
            if case is not None:
                return case.with_traces(self._traces(rng, case))
        raise CommandError(f"no legal params for seed {seed} in {ATTEMPTS} draws: fix some with --param")

    def _params(self, seed: int, shape: Shape, chunk: int, attempt: int) -> dict[str, Scalar]:
        values: dict[str, Scalar] = {}
        facts = facts_of(shape, chunk)
        for param in self.method.of(t.Param):
            name = param.name.text
            legal = range_of(param, self.method, values, facts)
            if name in self.pinned:
                values[name] = parsed(self.pinned[name], legal, name)
            else:
                values[name] = draw(name, legal, seed, shape.layers, attempt)
        return values

    def _traces(self, rng: Random, case: Case) -> tuple[Inputs, ...]:
        """Three sequences of unequal lengths: a short one, one at a threshold of the method, one well above all of them.

        The last decodes for longer than the largest threshold that fits, so that bursts and flushes happen.
        """
        thresholds = sorted({size for size in case.sizes.values() if 2 < size <= LONGEST}) or [16]
        at = rng.choice(thresholds) + rng.choice((-1, 0, 1))
        longest = min(LONGEST, 2 * thresholds[-1] + rng.randint(8, 40))
        short_steps = [size for size in thresholds if size <= LONGEST_DECODE] or [LONGEST_DECODE]
        plan = (
            (rng.choice((1, 1, 2, 3)), rng.randint(*NEW)),
            (min(LONGEST, max(1, at)), rng.randint(*NEW)),
            (longest, min(LONGEST_DECODE, short_steps[-1]) + rng.randint(2, 6)),
        )
        kinds = list(KINDS)
        rng.shuffle(kinds)
        return tuple(
            make_inputs(case.shape, kind, prompt_len, new, seed=1000 * case.seed + number)
            for number, (kind, (prompt_len, new)) in enumerate(zip(kinds, plan))
        )


def _shape(rng: Random, method: t.Method) -> Shape:
    """Codes along channels need whole blocks, so the head is wide where a method has such a store."""
    along_channels = any(
        isinstance(node, t.Keyword) and node.name.text == "along" and isinstance(node.value, t.Ref) and node.value.name.text == "c"
        for item in method.items
        for node in t.walk(item)
    )
    head_dim = 16 if along_channels else rng.choice((8, 8, 16, 32))
    return Shape(rng.choice((2, 3)), rng.choice((1, 2, 4)), rng.choice((1, 2, 3)), head_dim)
