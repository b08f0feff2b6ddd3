"""What the checker finds in a method given by its body: the codes in source order, or the diagnostics themselves."""

from collections.abc import Mapping

from sparsec.diagnostics import Diagnostic, Source, SpecError
from sparsec.dsl.check import check
from sparsec.dsl.parser import parse
from sparsec.render import in_source_order


def diagnostics(body: str, model: Mapping[str, int | float] | None = None) -> list[Diagnostic]:
    source = Source("test.sparse", f"sparse 1\nmethod test {{\n{body}\n}}\n")
    try:
        return in_source_order(check(parse(source), source, model).warnings)
    except SpecError as error:
        return in_source_order(error.diagnostics)


def codes(body: str, model: Mapping[str, int | float] | None = None) -> list[str]:
    return [one.code for one in diagnostics(body, model)]
