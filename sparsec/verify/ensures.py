"""The `ensure` clauses of a method, prepared for the oracle: each clause gets a twin that tells when it was due."""

from __future__ import annotations

from sparsec.dsl import tree as t

_TWIN = "due: "
_FALSE = t.Ref(t.Ident("false"))


def prepared(method: t.Method) -> t.Method:
    """The method with a twin after each ensure."""
    items: list[t.Item] = []
    for item in method.items:
        items.append(item)
        if isinstance(item, t.Ensure):
            # `false and X` is never true and names what X names, so it "fails" exactly where X is due.
            items.append(t.Ensure(_TWIN + item.text, t.Binary("and", _FALSE, item.condition), span=item.span))
    return t.Method(method.name, method.doc, tuple(items), span=method.span)


def clause_of(text: str) -> tuple[str, bool]:
    """The clause that a failure's text means, and whether it is the twin's."""
    return (text.removeprefix(_TWIN), True) if text.startswith(_TWIN) else (text, False)
