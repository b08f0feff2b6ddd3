"""The properties that the verifier tests for every method, one module each."""

from __future__ import annotations

from sparsec.dsl import tree as t
from sparsec.verify.properties import codec_bound, dense_limit, ensures, invariant_chunks, self_visibility
from sparsec.verify.property import Property

BUILT_IN = (
    dense_limit.PROPERTY,
    invariant_chunks.PROPERTY,
    self_visibility.PROPERTY,
    codec_bound.PROPERTY,
)


def properties_of(method: t.Method) -> tuple[Property, ...]:
    """The properties of every method, and the author's own ensures."""
    return (*BUILT_IN, *ensures.properties(method))
