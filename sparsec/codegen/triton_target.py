"""The Triton target: the kernels of a decode step that a spec decides, written from templates/triton for the facts that skeletons.py matched."""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.codegen.emit import Origin, render_decode
from sparsec.codegen.keep_rows import KeepOf
from sparsec.codegen.plan import Plan
from sparsec.codegen.skeletons import MassOf, PagesOf, Skeletons
from sparsec.codegen.token_choice import TokensOf
from sparsec.codegen.turned_keys import turns_keys
from sparsec.codegen.zone_moves import MovesOf
from sparsec.codegen.zone_target import two_zones_text

_TABLES = {
    "shared": "One table serves all layers and heads.",
    "layer": "Each layer has a table of its own.",
    "head": "Each layer and head has a table of its own.",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One attention kernel. reads: the rows held, or those of listed pages or listed tokens; logits: they are kept for a hook after attention."""

    name: str
    reads: str
    logits: bool
    doc: str


def decode_text(plan: Plan, skeletons: Skeletons, origin: Origin) -> str:
    """decode.py of an artifact. The method must have no reasons against kernels."""
    assert not skeletons.reasons, f"no kernels for {skeletons.reasons}"
    if skeletons.fact(MovesOf) is not None:
        return two_zones_text(plan, origin)
    mass, pages, keep = skeletons.fact(MassOf), skeletons.fact(PagesOf), skeletons.fact(KeepOf)
    asked = keep if keep is not None and keep.asked is not None else None
    turns = turns_keys(plan)
    firsts = plan.layout.position == "rank" and not turns
    per_head = plan.layout.scope == "head"
    tokens = skeletons.fact(TokensOf)
    variants = _variants(mass is not None or asked is not None or tokens is not None, pages, tokens)
    states = ["row_pos"] if plan.layout.evicts else []
    states += [f"state_{mass.state}"] if mass is not None else []
    written = ", its position" if plan.layout.evicts else ""
    written += f", {mass.state}" if mass is not None else ""
    written += f", {pages.low} and {pages.high} of its page" if pages is not None else ""
    shapes = f"; {', '.join(states)} [unit, PAGE]" if states else ""
    shapes += f"; summary_{pages.low}, summary_{pages.high} [unit, D]" if pages is not None else ""
    tools = ["chunk_sizes", "lengths_of", "product", "rotated", *([] if per_head else ["unit_of"])]
    return render_decode(
        "decode.py.j2", plan, origin, parts=_parts(variants, mass, pages, asked), tables=_TABLES[plan.layout.scope],
        tools=(["ALWAYS"] if pages is not None else []) + tools, variants=variants, apart=False, firsts=firsts, turns=turns, per_head=per_head,
        positions=plan.layout.evicts, mass=mass, pages=pages, asked=asked, written=written, shapes=shapes,
    )  # fmt: skip


def _variants(tells: bool, pages: PagesOf | None, tokens: TokensOf | None) -> list[Variant]:
    found = [Variant("attend_rows", "rows", False, "Attention of the newest query over every row held.")]
    if tells:
        found.append(Variant("attend_rows_and_tell", "rows", True, "Attention over every row held; logits [row, H * G, token] are kept."))
    if pages is not None:
        doc = "Attention over the pages listed in pages [row, head, n] (indexes into the row's table); len counts their tokens."
        found.append(Variant("attend_pages", "pages", False, doc))
    if tokens is not None:
        doc = f"Attention over the slots listed in tokens [row, n] as page * PAGE + slot, which line {tokens.line} chose; len counts them."
        found.append(Variant("attend_tokens", "tokens", False, doc))
    return found


def _parts(variants: list[Variant], mass: MassOf | None, pages: PagesOf | None, asked: KeepOf | None) -> str:
    names = ["write_rows", *(variant.name for variant in variants), "merge_chunks"]
    names += ["add_mass"] if mass is not None else []
    names += ["bound_pages"] if pages is not None else []
    names += ["ask_newest"] if asked is not None else []
    return ", ".join(names)
