"""What a replay returns: the rows that were kept and read, the attention outputs, and the values that were asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One recorded value of one layer after one step.

    `values` has one axis per letter of `letters`. The token axis is aligned with `positions` [kv_head, token]: the logical position
    of each entry, -1 where a head has no such row or the value is not defined there; None if there is no token axis. Scales and
    minima of codes along tokens have one entry per block, at the position of the block's first row.
    """

    values: Tensor
    letters: tuple[str, ...]
    positions: Tensor | None = None

    def at(self, head: int) -> dict[int, Tensor]:
        """Position -> value of one KV head, with the token and head axes taken away."""
        assert self.positions is not None, "this value has no token axis"
        values, letters = self.values, list(self.letters)
        if "h" in letters:
            values = values.select(letters.index("h"), head)
            letters.remove("h")
        values = values.movedim(letters.index("t"), 0)
        return {int(p): values[n] for n, p in enumerate(self.positions[head].tolist()) if p >= 0}


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Step 0 is the whole prompt, step s >= 1 the s-th decode step.

    kept[s][l][h]: sorted positions that each KV head holds after the step. attended[s][l][a]: positions that each query head read, in
    slot order (step 0: the last prompt query); empty where the replay has no query. output [layer, token from q_start, q_head, channel].
    recorded[name][s][l]: a Recorded, or None where the value was not computed in that step and layer.
    """

    kept: list[list[list[Tensor]]]
    attended: list[list[list[Tensor]]]
    output: Tensor
    recorded: dict[str, list[list[Recorded | None]]]
