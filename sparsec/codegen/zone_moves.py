"""Moves between two zones: whether all that finish_step does is to send the oldest rows of the newest zone to the next one."""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.codegen.plan import LayoutPlan, Move, Op, Step


@dataclass(frozen=True, slots=True)
class MovesOf:
    """A Moves of the runtime's DecodePlan, as generated text."""

    zone: str
    to: str
    parts: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        parts = ", ".join(f'"{part}"' for part in self.parts)
        return f'Moves("{self.zone}", "{self.to}", ({parts}{"," if len(self.parts) == 1 else ""}))'


def zone_moves(effects: list[Step], layout: LayoutPlan, line: int) -> MovesOf | None:
    """effects: of the hook, locals in place. When rows go and how many is not looked at: the host counts them, or the method does not compile."""
    if len(layout.zones) != 2 or layout.scope != "shared":
        return None
    newest, older = (zone.name for zone in layout.zones)
    parts: list[str] = []
    for effect in effects:
        if not isinstance(effect, Move) or effect.zone != older or not _oldest(effect.rows, newest):
            return None
        parts += ["K", "V"] if effect.part is None else [effect.part]
    return MovesOf(newest, older, tuple(sorted(parts)), line) if parts and len(set(parts)) == len(parts) else None


def _oldest(rows: Op, zone: str) -> bool:
    """Whether a set is a run of rows of the zone that begins with its oldest."""
    if rows.name == "map" and rows.detail == ("minus",):
        everything, newest = rows.args
        return _named(everything, "all", zone) and newest.name == "positional" and newest.detail[0] == "recent"
    return _named(rows, "oldest", zone)


def _named(op: Op, kind: str, zone: str) -> bool:
    return op.name == "positional" and op.detail[:2] == (kind, zone)
