"""Every query reads its own row, unless the author wrote `attend blind`."""

from __future__ import annotations

from functools import partial

import torch

from sparsec.dsl import tree as t
from sparsec.verify.case import Case
from sparsec.verify.property import Found, Property, Violation
from sparsec.verify.spec import is_blind
from sparsec.verify.traces import Inputs


def _skip(case: Case) -> str | None:
    return "an `attend blind` may miss the query's own row" if is_blind(case.special) else None


def check_on(target: str, case: Case) -> Found:
    for inputs in case.traces:
        found = _missing(case, inputs, target)
        if found is not None:
            yield found


def _missing(case: Case, inputs: Inputs, target: str) -> Violation | None:
    for number, step in enumerate(case.run(target, inputs).steps):
        for layer, attended in enumerate(step.attended):  # [query, q_head, token]
            queries, _, tokens = attended.shape
            own = torch.arange(tokens - queries, tokens)[:, None, None].expand(-1, attended.shape[1], 1)
            seen = attended.gather(2, own).squeeze(-1)
            if not bool(seen.all()):
                query, head = (~seen).nonzero()[0].tolist()
                message = f"the query at position {tokens - queries + query} does not read its own row (query head {head})"
                return Violation(message, inputs, number, layer, head, case.acting_line((t.Attend, t.Evict)))
    return None


PROPERTIES = tuple(Property("self-visibility", target, partial(check_on, target), _skip) for target in ("reference", "torch", "triton"))
