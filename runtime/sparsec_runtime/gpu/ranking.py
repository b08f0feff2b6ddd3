"""The best entries of many lines at once, exactly: one launch where a program ranks a whole line or the best groups of one, two where lines are ranked in parts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .blocks import pow2
from .kernels.rank import rank_groups, rank_line, rank_parts, rank_survivors
from .kernels.sampled import count_parts, list_parts

LARGEST = 1 << 14  # entries of one block: 16 keys of a thread, of which 32 warps keep no more in registers
LEAST = 1 << 10  # entries of a part
LAUNCH = 1 << 12  # entries that a program ranks in about the time that a further launch takes
EACH = 256  # entries per warp
PROGRAMS = 1 << 8  # that run at once, about
PARTS = 1 << 6  # of a line, where they may be longer: every program adds up what all of them count
NO_OPTIONS: Mapping[str, bool] = {}


def part_of(entries: int, best: int) -> int:
    """Entries that one program ranks, where `best` of them are asked for: those of the whole line, or of the parts that are ranked soonest.

    Time goes with the entries of a part and then of all that the parts hand on, each a power of two; what does not fit a block is read 32 times.
    """

    def cost(part: int) -> int:
        if part >= entries:
            return part
        handed = pow2(-(-entries // part) * min(part, best))
        return part + LAUNCH + (handed if handed <= LARGEST else 32 * handed)

    sizes = [size for size in (LEAST << n for n in range(5)) if size < entries]
    return min([*sizes, *[pow2(entries)] * (entries <= LARGEST)][::-1], key=cost)  # of equals the largest


def rank_best(
    score: Tensor, held: Tensor, count: Tensor, out: Tensor, *, ends: tuple[Tensor, Tensor] | None = None, unit: int = 1,
    part: int | None = None, options: Mapping[str, bool] = NO_OPTIONS,
) -> None:  # fmt: skip
    """out [row, head, n], int32: the first count[row] of each line are the indexes of its best scores, ascending, ties to the lower index.

    score [row, head, entry] fp32; ceil(held[row] / unit) entries of a row are candidates, and no other is read. ends: how many first and newest
    entries [row] are taken before all others; None: the last entry. What lies behind count[row], or behind the candidates, is left as it was.
    part: a power of two, entries of a part whose best are ranked once more; None: by a sample where one program cannot rank a line (`rank_sampled`), else
    `part_of` chooses. options: of every launch.
    """
    rows, heads, entries = score.shape
    if part is None and entries > LARGEST:
        rank_sampled(score, held, count, out, ends=ends, unit=unit, options=options)
        return
    first, newest = (held, held) if ends is None else ends
    part = part or part_of(entries, out.shape[2])
    given = (score, held, count, first, newest)
    common = {"H": heads, "UNIT": unit, "ENDS": ends is not None, "BLOCK": part, "num_warps": warps_of(part), **options}
    if part >= entries:
        rank_line[(rows * heads,)](*given, out, score.stride(1), out.stride(1), entries, **common)
        return
    pairs = room_for_pairs(rows * heads, entries, part, out.shape[2], score.device)
    parts, slots = pairs[0].shape[1:]
    rank_parts[(rows * heads, parts)](*given, *pairs, score.stride(1), slots, **common, PADDED=pow2(slots))
    rank_pairs(pairs, count, out, heads, options)


def sampled_part(lines: int, entries: int) -> int:
    """Entries of a program: few where that many programs run at once; not so few that a line has very many parts."""
    few = [part for part in (1 << 11, 1 << 12) if lines * -(-entries // part) <= PROGRAMS and entries <= part * PARTS]
    return few[0] if few else 1 << 13 if entries <= PARTS << 13 else LARGEST


def room_between(entries: int, best: int, sample: int) -> int:
    """Keys that lie between the two of a sample (kernels/sampled.py, bracket), four standard deviations more than are expected there; a power of two."""
    ranks = 10 * math.sqrt(sample * (share := min(1.0, best / entries)) * (1 - share)) + 8
    return min(LARGEST, pow2(math.ceil((ranks + 4 * math.sqrt(ranks)) * entries / sample)))


def rank_sampled(
    score: Tensor, held: Tensor, count: Tensor, out: Tensor, *, ends: tuple[Tensor, Tensor] | None = None, unit: int = 1,
    part: int | None = None, sample: int | None = None, room: int | None = None, options: Mapping[str, bool] = NO_OPTIONS,
) -> None:  # fmt: skip
    """The same as rank_best: each line by many programs, which a sample of `sample` of its entries tells where the least of the best is.

    part: entries of a program; room: keys that may be between where the sample says; powers of two, None: chosen.
    """
    rows, heads, entries = score.shape
    first, newest = (held, held) if ends is None else ends
    part = part or sampled_part(rows * heads, entries)
    sample = sample or part // 2
    parts = -(-entries // part)
    told = torch.empty((rows * heads, parts, 6), dtype=torch.int32, device=score.device)
    between = torch.empty((rows * heads, parts, part), dtype=torch.int32, device=score.device)
    given = (score, held, count, first, newest, told, between)
    common = {"H": heads, "UNIT": unit, "ENDS": ends is not None, "BLOCK": part, "num_warps": warps_of(part), **options}
    count_parts[(rows * heads, parts)](*given, score.stride(1), SAMPLE=sample, **common)
    list_parts[(rows * heads, parts)](
        *given, out, score.stride(1), out.stride(1), PARTS=pow2(parts), ROOM=room or room_between(entries, out.shape[2], sample), **common
    )


def groups_pay(entries: int, group: int, best: int) -> bool:
    """Whether the best groups of `group` entries and then the entries of these are ranked sooner than all entries."""
    groups, looked_at = pow2(-(-entries // group)), pow2(best) * group
    return groups + looked_at <= entries and max(groups, looked_at) <= LARGEST


def rank_grouped(
    score: Tensor, best: Tensor, held: Tensor, count: Tensor, out: Tensor, *, group: int, unit: int = 1, grouped: bool | None = None, warps: int | None = None,
    options: Mapping[str, bool] = NO_OPTIONS,
) -> None:  # fmt: skip
    """The same as rank_best without ends, where best [row, head, n] are known, the best scores of `group` entries each.

    grouped, warps: whether they are ranked first, and the warps of a program; None: `groups_pay` and `warps_of` choose.
    """
    rows, heads, entries = score.shape
    if not (groups_pay(entries, group, out.shape[2]) if grouped is None else grouped):
        rank_best(score, held, count, out, unit=unit, options=options)
        return
    groups, most = pow2(-(-entries // group)), pow2(out.shape[2])
    room = torch.empty((rows * heads, most), dtype=torch.int32, device=score.device)
    rank_groups[(rows * heads,)](
        score, best, held, count, room, out, score.stride(1), best.stride(1), out.stride(1), best.shape[2],
        H=heads, UNIT=unit, GROUP=group, GROUPS=groups, MOST=most, num_warps=warps or warps_of(max(groups, most * group)), **options,
    )  # fmt: skip


def room_for_pairs(lines: int, entries: int, part: int, best: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For the keys and the indexes of what parts hand on, [line, part, slot] each."""
    keys = torch.empty((lines, -(-entries // part), min(part, best)), dtype=torch.int32, device=device)
    return keys, torch.empty_like(keys)


def rank_pairs(pairs: tuple[Tensor, Tensor], count: Tensor, out: Tensor, heads: int, options: Mapping[str, bool] = NO_OPTIONS) -> None:
    """out [..., row, head, n] from the pairs of each line, in the same order of lines; count [row]."""
    lines, parts, slots = pairs[0].shape
    block = min(LARGEST, pow2(parts * slots))
    rank_survivors[(lines,)](
        *pairs, count, out, parts * slots, count.shape[0], out.stride(-2), H=heads, BLOCK=block, WHOLE=parts * slots <= block,
        num_warps=warps_of(block), **options,
    )  # fmt: skip


def warps_of(block: int) -> int:
    return max(1, min(32, block // EACH))
