"""Short ways from a spec, shipped or written in the test, to its facts and graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparsec.diagnostics import Source
from sparsec.pipeline import Compilation

Compile = Callable[..., Compilation]


@pytest.fixture
def compiled() -> Compile:
    """`compiled("quest", page_size=32)`, or `compiled("{ on finish_step { ... } }")` for the body of a new method."""

    def compile_(spec: str, **params: object) -> Compilation:
        if spec.lstrip().startswith("{"):
            return Compilation(Source("test.sparse", f"sparse 1\nmethod test {spec}\n"), params)
        return Compilation.load(spec, params)

    return compile_
