"""From a case to the generated manager, through the compiler's main path."""

from __future__ import annotations

from collections.abc import Mapping

from sparsec.diagnostics import Source, SpecError
from sparsec.pipeline import Compilation
from sparsec.reference.values import Scalar
from sparsec_runtime.artifact import load_artifact
from sparsec_runtime.cache import CacheManager


class NotCompiled(Exception):
    """The target cannot compile a construct yet (S9xx)."""


def compile_method(
    source: Source, params: Mapping[str, Scalar], facts: Mapping[str, Scalar]
) -> tuple[type[CacheManager], dict[str, Scalar]]:
    """The manager's class, and the params that a request gives."""
    compilation = compilation_of(source, params, facts)
    dynamic = {name: value for name, value in params.items() if name not in compilation.static_names}
    try:
        return load_artifact(compilation.artifact.path), dynamic
    except SpecError as error:
        first = error.diagnostics[0]
        if not first.code.startswith("S9"):
            raise
        raise NotCompiled(f"{first.message} (line {first.span.line})") from error


def compilation_of(source: Source, params: Mapping[str, Scalar], facts: Mapping[str, Scalar]) -> Compilation:
    model = {name: value for name, value in facts.items() if name != "chunk"}
    return Compilation(source, {name: _given(value) for name, value in params.items()}, model)


def _given(value: Scalar) -> object:
    """Values as a command line would write them."""
    return str(value).lower() if isinstance(value, bool) else value
