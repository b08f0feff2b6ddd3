"""S9xx: a construct that the language has and a target has not. Always names the spec line and what to do instead."""

from __future__ import annotations

from typing import NoReturn

from sparsec.diagnostics import Diagnostic
from sparsec.dsl.tree import Span


class Unsupported(Exception):
    """Raised while lowering; the pipeline adds the source and makes it a SpecError."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        super().__init__(diagnostic.message)


def unsupported(what: str, span: Span, help: str, code: str = "S901") -> NoReturn:
    raise Unsupported(Diagnostic(code, f"the torch target cannot compile {what}", span, help))
