"""The Triton target where rows lie in two zones: decode.py with kernels that read codes of the older zone and raw rows of the newest."""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.codegen.emit import Origin, render_decode
from sparsec.codegen.plan import CodecPlan, Plan

WORD_BITS, TILE = 16, 16


@dataclass(frozen=True, slots=True)
class Part:
    """K or V of the older zone. bits 0: raw; each: rows of a line (a word, or a row); folded: a tile's rows share K's scales, which go into the query;
    apart: V's minima, one for a block of channels, have a product of their own."""

    bits: int
    each: int
    along_t: bool
    block: int
    zero: bool
    folded: bool
    apart: bool

    @property
    def format(self) -> str:
        if not self.bits:
            return "[unit, PAGE, D]"
        lines = f"PAGE / {self.block}, D" if self.along_t else f"D / {self.block}, PAGE"
        return f"words of {self.bits}-bit codes [unit, PAGE / {self.each}, D], scales{' and minima' if self.zero else ''} [unit, {lines}]"


def two_zones_text(plan: Plan, origin: Origin) -> str:
    """decode.py of an artifact whose method has two zones."""
    newest, older = plan.layout.zones
    k, v = _part(older.key, key=True), _part(older.value, key=False)
    stored = [name for part, letter in ((k, "k"), (v, "v")) for name in _pointers(part, letter)]
    coded = {"lines_of", "rows_of", "whole_steps"} | ({"decoded_rows"} if k.bits or v.bits else set())
    coded |= {"folded", "numbers"} if k.folded else set()
    coded |= {"channel_scales", "weighed", "with_minima"} if v.apart else set()
    coded |= {"decoded", "scales_of"} if (v.bits and not v.apart) or (k.bits and not k.folded) else set()
    return render_decode(
        "two_zones.py.j2", plan, origin, parts="write_rows, attend_zones, merge_zones", coded=sorted(coded), stored=stored, step=TILE * max(k.each, v.each),
        tables="One table of each part in each zone serves all layers and heads.", k=k, v=v, zone=older.name, tail=newest.name,
        apart=True, firsts=False, turns=False, per_head=False, positions=False, mass=None, pages=None, written="", shapes="",
    )  # fmt: skip


def _part(codec: CodecPlan | None, *, key: bool) -> Part:
    if codec is None:
        return Part(0, 1, False, 1, False, False, False)
    along_t = codec.along == "t"
    folded, apart = key and along_t and codec.block % TILE == 0, not (key or along_t)
    return Part(codec.bits, WORD_BITS // codec.bits, along_t, codec.block, codec.zero, folded, apart)


def _pointers(part: Part, letter: str) -> list[str]:
    return [letter, *([f"{letter}_scale"] if part.bits else []), *([f"{letter}_low"] if part.zero else [])]
