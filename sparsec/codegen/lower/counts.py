"""Count rules of the graph to Python text: how the host follows the rows of a request without reading the device.

The text gives an upper bound wherever a count or a guard depends on tensors: an evict that may not run leaves all rows, a
move of an unknown number leaves its source as it was.
"""

from __future__ import annotations

import re
from keyword import iskeyword

from sparsec.codegen.lower import host
from sparsec.codegen.lower.scope import Names
from sparsec.codegen.plan import CountPlan
from sparsec.dsl import tree as t
from sparsec.dsl.checked import Checked
from sparsec.graph.counts import CountRule, count_rules

_COUNTERS = {
    "len": "length", "prefilling": "prefilling", "decoding": "(not prefilling)", "prompt_done": "prompt_done", "steps": "steps",
    "prompt_rows": "prompt_rows", "none": "()",
}  # fmt: skip
_SIZES = {"l": 'model["n_layers"]', "h": 'model["kv_heads"]'}
_SHARERS = {"head": "", "layer": 'model["kv_heads"]', "model": '(model["kv_heads"] * model["n_layers"])'}


def plan_counts(special: Checked, names: Names) -> tuple[CountPlan, ...]:
    """One per evict and move that changes what the host counts, in the order in which they run."""
    rules = count_rules(special)
    repeated = any(not rule.exact and "finish_step" in rule.hooks for rule in rules)
    plans = []
    for n, rule in enumerate(rules):
        doubted = repeated or any(not earlier.exact and not _instead(earlier, rule) for earlier in rules[:n])
        plans.append(_plan(rule, names, doubted))
    return tuple(plan for plan in plans if plan.after)


def _plan(rule: CountRule, names: Names, doubted: bool) -> CountPlan:
    """`doubted`: the counts that the rule starts from may be bounds themselves, so a guard over them decides nothing."""
    known = dict(_COUNTERS)
    lets: list[tuple[str, str]] = []
    for let in rule.lets:
        variable = _variable(let.target.name.text)
        lets.append((variable, _let(let, host.Where(names, known))))
        known[let.target.name.text] = variable
    where = host.Where(names, known)
    fires = _fires(rule.hooks)
    if rule.layers is not None:
        fires = " and ".join(_joinable(text) for text in (fires, host.text(rule.layers, where)))
    when = host.text(rule.when, where) if rule.when is not None else None
    if rule.action == "evict":
        after = _evicted(rule, where) if rule.certain else ()  # the graph has counted what stays where only the bound passes
    else:
        undecided = doubted and when is not None and _reads_counts(when, *(value for _, value in lets))
        after, when = _moved(rule, where, rule.exact and not doubted), None if undecided else when
    return CountPlan(fires, tuple(lets), when, after, rule.line)


def _instead(earlier: CountRule, rule: CountRule) -> bool:
    """Of the evicts of one hook at most one runs (S508), so the earlier one did not run before this one."""
    return earlier.action == rule.action == "evict" and earlier.hooks == rule.hooks


def _reads_counts(*texts: str) -> bool:
    return any(re.search(r"\b(length|rows|prompt_rows)\b", text) for text in texts)


def _joinable(text: str) -> str:
    return f"({text})" if " or " in text or " if " in text else text


def _variable(name: str) -> str:
    taken = name in ("params", "model", "rows", "length", "layer", "hook", "steps", "held", "ops", "counts", "phase", "min", "max", "math") or iskeyword(name)
    return f"{name}_" if taken else name


def _let(let: t.Let, where: host.Where) -> str:
    """The value; over a letter it is a list, so that `x[layer]` reads the same as in the spec."""
    value, indices = let.value, [i.name.text for i in let.target.indices if isinstance(i, t.Ref)]
    for letter in indices:
        where = host.Where(where.names, {**where.known, letter: letter})
    if isinstance(value, t.Reduce):
        assert value.op.text == "apportion" and len(indices) == 1, f"line {let.span.line}: the graph says that the host knows this"
        raw, total = (host.text(arg, where) for arg in value.args)
        return f"ops.whole_shares([{raw} for {indices[0]} in range({_SIZES[indices[0]]})], {total})"
    text = host.text(value, where)
    for letter in reversed(indices):
        text = f"[{text} for {letter} in range({_SIZES[letter]})]"
    return text


def _fires(hooks: tuple[str, ...]) -> str:
    """A rule bound to end_of_prompt and finish_step runs once in the step that ends the prompt."""
    if set(hooks) >= {"end_of_prompt", "finish_step"}:
        return 'hook == "end_of_prompt" or hook == "finish_step" and not ends_prompt'
    return f'hook == "{hooks[0]}"' if len(hooks) == 1 else f"hook in {hooks!r}".replace("'", '"')


def _evicted(rule: CountRule, where: host.Where) -> tuple[str, ...]:
    lines = ("rows = {place: min(count, held) for place, count in rows.items()}", "length = min(length, held)")
    return (*_whole("held", rule, where), *lines)


def _moved(rule: CountRule, where: host.Where, exact: bool) -> tuple[str, ...]:
    """Counted once, before either part moves. Where fewer rows may move than are told, none leave their source."""
    lines = list(_whole("moved", rule, where))
    for part in rule.parts:
        if exact and rule.source is not None:
            lines += [f'rows["{rule.source}", "{part}"] -= moved', f'rows["{rule.zone}", "{part}"] += moved']
        else:
            lines.append(f'rows["{rule.zone}", "{part}"] = min(length, rows["{rule.zone}", "{part}"] + moved)  # at most')
    return tuple(lines)


def _whole(name: str, rule: CountRule, where: host.Where) -> tuple[str, ...]:
    """Rows per KV head; where heads share a budget, their average rounded up."""
    text, sharers = host.text(rule.rows, where), _SHARERS[rule.per]
    return (f"{name} = {text}",) if not sharers else (f"{name} = {text}  # of all heads", f"{name} = -(-{name} // {sharers})")
