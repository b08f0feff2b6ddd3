"""The properties that the verifier tests for every method: what the language promises, then what its author promises."""

from __future__ import annotations

from sparsec.dsl import tree as t
from sparsec.verify.properties import (
    accounting,
    batch_equals_single,
    codec_bound,
    compiles,
    dense_limit,
    ensures,
    equal_targets,
    invariant_chunks,
    repeatable,
    rows_follow,
    self_visibility,
)
from sparsec.verify.property import Property

BUILT_IN = (
    compiles.PROPERTY,
    *dense_limit.PROPERTIES,
    *invariant_chunks.PROPERTIES,
    *self_visibility.PROPERTIES,
    codec_bound.PROPERTY,
    *equal_targets.PROPERTIES,
    batch_equals_single.PROPERTY,
    repeatable.PREEMPTION,
    repeatable.ROLLBACK,
    repeatable.PLACEMENT,
    repeatable.NO_LEAK,
    rows_follow.POSITIONS,
    rows_follow.PAYLOAD,
    accounting.SLOTS,
    accounting.BYTES,
)


def properties_of(method: t.Method) -> tuple[Property, ...]:
    """The properties of every method, and the author's own ensures."""
    return (*BUILT_IN, *ensures.properties(method))
