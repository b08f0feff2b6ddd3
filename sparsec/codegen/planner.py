"""A specialised method and its facts to the plan of one artifact."""

from __future__ import annotations

from collections.abc import Mapping

from sparsec.codegen.layout import plan_layout
from sparsec.codegen.lower.counts import plan_counts
from sparsec.codegen.lower.hooks import lower_hooks
from sparsec.codegen.lower.scope import Names
from sparsec.codegen.params import plan_params
from sparsec.codegen.plan import Plan, canonical
from sparsec.codegen.unsupported import Unsupported, unsupported
from sparsec.diagnostics import SpecError
from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.dsl.specialise import StaticValue
from sparsec.graph.facts import Facts
from sparsec.graph.program import Program


def make_plan(
    original: Checked, special: Checked, static: Mapping[str, StaticValue], facts: Facts, record: frozenset[str] = frozenset()
) -> Plan:
    """Raises SpecError S9xx where the torch target cannot compile a construct. record: lets whose values a trace wants."""
    try:
        return _plan(original, special, static, facts, record)
    except Unsupported as error:
        raise SpecError(special.source, (error.diagnostic,)) from None


def _plan(original: Checked, special: Checked, static: Mapping[str, StaticValue], facts: Facts, record: frozenset[str]) -> Plan:
    method = special.method
    _refuse_declarations(method)
    names = Names.of(method, dict(special.letters), facts.table.value == "head", record, facts.page_size)
    bindings = lower_hooks(names)
    used = {letter for letter in special.letters if letter in _letters_in(method)}
    return Plan(
        method=method.name.text,
        doc=method.doc,
        layout=plan_layout(names, bindings, facts, Program(special)),
        params=plan_params(original.method, names, dict(static)),
        bindings=bindings,
        counts=plan_counts(special, names),
        letters=tuple((letter, special.letters[letter]) for letter in canonical(used | {"h", "t"})),
    )


def _refuse_declarations(method: t.Method) -> None:
    for weight in method.of(t.Weight):
        unsupported("a weight", weight.span, "the reference target runs it", "S914")
    for domain in method.of(t.Domain):
        unsupported(f"a declared domain (`{domain.name}`)", domain.span, "the reference target runs it", "S914")


def _letters_in(method: t.Method) -> set[str]:
    """Names that stand as an index or a binder anywhere."""
    found: set[str] = set()
    for node in t.walk(method):
        if isinstance(node, t.Binder):
            found.add(node.letter.text)
        elif isinstance(node, t.Ref):
            found |= {index.name.text for index in node.indices if isinstance(index, t.Ref)}
    return found
