"""Syntax to checked method: names, domains, units and ranges here; sets, effects, whole-method rules and cost after.

All errors of a file are reported together. The later passes run on what the earlier ones could type: they keep silent
about expressions of type UNKNOWN.
"""

from __future__ import annotations

from sparsec.diagnostics import Source, SpecError
from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.context import Context, ModelFacts
from sparsec.dsl.cost import check_cost
from sparsec.dsl.declarations import check_declarations
from sparsec.dsl.effects import check_effects
from sparsec.dsl.lints import check_lints
from sparsec.dsl.pools import check_pools
from sparsec.dsl.prompt_rows import check_prompt_rows
from sparsec.dsl.ranges import check_ranges
from sparsec.dsl.rules import check_rules
from sparsec.dsl.scopes import declare
from sparsec.dsl.sets import check_sets
from sparsec.dsl.statements import check_ensure, check_hook, collect_lets
from sparsec.dsl.types import Typer
from sparsec.dsl.whole_blocks import check_block_evictions


def check(file: t.SparseFile, source: Source, model: ModelFacts | None = None, strict: bool = True) -> Checked:
    """Check one file. `strict=False` is for a specialised tree, whose values may have lost letters; it is not linted."""
    ctx = analyse(file, source, model, strict)
    if ctx.errors:
        raise SpecError(source, ctx.errors)
    return Checked(source, file, ctx.symbols, ctx.letters, ctx.types, ctx.warnings)


def analyse(file: t.SparseFile, source: Source, model: ModelFacts | None = None, strict: bool = True) -> Context:
    """Run every pass and return what it found, errors included."""
    ctx = type_method(file, source, model, strict)
    check_pools(ctx)
    check_sets(ctx)
    check_block_evictions(ctx)
    check_effects(ctx)
    check_prompt_rows(ctx)
    check_rules(ctx)
    check_cost(ctx)
    if strict and not ctx.errors:
        check_lints(ctx)
    return ctx


def type_method(file: t.SparseFile, source: Source, model: ModelFacts | None = None, strict: bool = True) -> Context:
    """Names, domains, units and ranges: S1xx, S2xx, S3xx, and the type of every expression."""
    ctx = Context(source, file, model, strict)
    declare(ctx)
    typer = Typer(ctx)
    collect_lets(typer)
    check_declarations(typer)
    check_ranges(ctx)
    for hook in ctx.method.of(t.Hook):
        check_hook(typer, hook)
    for item in ctx.method.of(t.Ensure):
        check_ensure(typer, item)
    return ctx
