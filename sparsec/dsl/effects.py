"""S5xx: what a hook may do and read, and how often.

Knows the lifecycle table of the language: actions and special tensors per hook. Whether a whole method makes sense
(`rules.py`) and whether its sets do (`sets.py`) is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.names import HOOKS, TENSORS
from sparsec.dsl.paths import Place, all_places, conditions_of, exclusive, places, references, text_of
from sparsec.dsl.scopes import reserved


_SPECIAL = frozenset(tensor.name for tensor in TENSORS.values() if tensor.source in ("step", "scores"))
_ACTIONS = {t.Assign: "state", t.Move: "move", t.Evict: "evict", t.Attend: "attend", t.Blend: "blend"}
_COMPARED = 16  # exclusive statements that a further one is compared with: keeps hostile files linear
_PHRASES = {"state": "update state", "shared": "update shared state"}


def check_effects(ctx: Context) -> None:
    """Report every S5xx finding of the method."""
    for place in all_places(ctx.method):
        _check_action(ctx, place)
        if isinstance(place.stmt, t.Assign):
            _check_assignment(ctx, place.hook, place.stmt)
    for hook in ctx.method.of(t.Hook):
        _check_reads(ctx, hook)
    reported: set[int] = set()  # one statement of a binding to two hooks is reported for the first alone
    for name, bound in _by_hook_name(ctx.method):
        _check_repetition(ctx, name, bound, reported)
    _check_page_states(ctx)


def _names(hook: t.Hook) -> Iterator[str]:
    return (name.text for name in hook.names if name.text in HOOKS)


# ---- what a hook may do ----------------------------------------------------------------------


def _check_action(ctx: Context, place: Place) -> None:
    action = _ACTIONS.get(type(place.stmt))
    for name in _names(place.hook):
        may = HOOKS[name].may
        if action is None or action in may or (action == "state" and "shared" in may):
            continue
        allowed = _listed([_PHRASES.get(word, word) for word in sorted(may)], "and")
        legal = _listed([f"`{other}`" for other, hook in HOOKS.items() if action in hook.may], "or")
        word = "a state update" if action == "state" else f"`{action}`"
        ctx.report("S501", place.stmt, f"{word} is not allowed in `{name}`, which may only {allowed}", f"do it in {legal}")


def _listed(words: list[str], last: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _check_assignment(ctx: Context, hook: t.Hook, stmt: t.Assign) -> None:
    name = stmt.target.name.text
    symbol = ctx.symbols.get(name) or next(iter(ctx.lets.get(name, ())), None)
    kind = f"a {symbol.kind}" if symbol is not None else reserved(name)
    if kind is None:
        return
    if kind == "a summary":
        message = f"summary `{name}` follows from the rows and is never assigned"
        ctx.report("S506", stmt.target, message, f"change its equation, or declare `state {name}` and update that")
    elif kind != "a state":
        help_line = f"declare a `state` for it, or define a new name: `let {name}_now = ...`"
        ctx.report("S505", stmt.target, f"`{name}` is {kind}, and only a state is assigned", help_line)
    elif isinstance(symbol.item, t.State):
        _check_state_update(ctx, hook, stmt, symbol.item)


def _check_state_update(ctx: Context, hook: t.Hook, stmt: t.Assign, state: t.State) -> None:
    name = stmt.target.name.text
    for hook_name in _names(hook):
        if "state" not in HOOKS[hook_name].may and "shared" in HOOKS[hook_name].may and not state.shared:
            message = f"`{hook_name}` may only update shared state, and `{name}` is not shared"
            ctx.report("S510", stmt.target, message, "update it in an `after_..._attention` hook, or declare it `shared`")
        if HOOKS[hook_name].per == "step" and state.shared:
            message = f"`{name}` is shared within one step, but `{hook_name}` runs after the last layer that could read it"
            ctx.report("S511", stmt.target, message, "update it in a hook of a layer, or drop `shared`")


# ---- what a hook may read --------------------------------------------------------------------


def _check_reads(ctx: Context, hook: t.Hook) -> None:
    for condition in conditions_of(hook):
        _check_expression(ctx, hook, condition)
    for place in places(hook):
        if isinstance(place.stmt, t.Let):
            _check_self_read(ctx, place.stmt)
        _check_expression(ctx, hook, place.stmt)
    if not all(HOOKS[name].window for name in _names(hook)):
        _check_no_window(ctx, hook)


def _check_no_window(ctx: Context, hook: t.Hook) -> None:
    """`last(n)` reaches back over chunks and steps: only hooks that run after a step have that window."""
    bound = next((name for name in _names(hook) if not HOOKS[name].window), None)
    for node in t.walk(hook):
        if isinstance(node, t.Binder) and _is_window(node.within):
            letter = node.letter.text
            windows = _listed([f"`{name}`" for name, entry in HOOKS.items() if entry.window], "and")
            message = f"`last(n)` reaches back over earlier steps, which `{bound}` does not see"
            helps = f"here `{letter}` is the step's own queries: write `{letter}`; windows are for {windows}"
            ctx.report("S512", node, message, helps)


def _check_self_read(ctx: Context, stmt: t.Let) -> None:
    name = stmt.target.name.text
    for ref in references(stmt.value):
        symbol = ctx.symbol_of(ref)
        if ref.name.text == name and (symbol is None or symbol.item is stmt):
            message = f"`{name}` is defined by this `let` and cannot read itself"
            ctx.report("S507", ref, message, "a value that is carried from step to step is a `state`")


def _check_expression(ctx: Context, hook: t.Hook, node: t.Node) -> None:
    for name in _names(hook):
        for ref, bound in _special_reads(ctx, node, frozenset()):
            word = ref.name.text
            if word in HOOKS[name].window:
                _check_window(ctx, name, ref, bound)
            elif word not in HOOKS[name].reads:
                legal = [f"`{other}`" for other, entry in HOOKS.items() if word in entry.reads]
                helps = f"it is known in {_listed(legal, 'and')}; carry what you need in a `state`"
                ctx.report("S502", ref, f"`{word}` is not known in `{name}`", helps)


def _check_window(ctx: Context, hook: str, ref: t.Ref, bound: frozenset[str]) -> None:
    letter = _query_letter(ctx, ref)
    if letter is not None and letter not in bound:
        message = f"`{ref.name.text}` in `{hook}` is known for the newest queries only, but `{letter}` ranges over all"
        ctx.report("S503", ref, message, f"bind it to a window: `{letter} in last(n)`")


def _special_reads(ctx: Context, node: t.Node, bound: frozenset[str]) -> Iterator[tuple[t.Ref, frozenset[str]]]:
    """References to tensors of the step, each with the letters that a `last(n)` around it binds."""
    if isinstance(node, t.Ref) and node.name.text in _SPECIAL:
        yield node, bound
    inner = bound
    if isinstance(node, t.Reduce):
        inner = bound | {b.letter.text for b in node.binders if _is_window(b.within) or b.within is not None and ctx.failed(b.within)}
    for child in t.children(node):
        yield from _special_reads(ctx, child, inner)


def _is_window(within: t.Expr | None) -> bool:
    return isinstance(within, t.Call) and within.name.text == "last"


def _query_letter(ctx: Context, ref: t.Ref) -> str | None:
    letters = (index.name.text for index in ref.indices if isinstance(index, t.Ref))
    return next((letter for letter in letters if ctx.letters.get(letter) == "query"), None)


# ---- how often -------------------------------------------------------------------------------


def _by_hook_name(method: t.Method) -> Iterator[tuple[str, list[Place]]]:
    """All statements that run at one hook, over every binding of it, in source order."""
    for name in HOOKS:
        hooks = [hook for hook in method.of(t.Hook) if name in _names(hook)]
        yield name, [place for hook in hooks for place in places(hook)]


def _check_repetition(ctx: Context, hook: str, bound: list[Place], reported: set[int]) -> None:
    seen: dict[str, list[Place]] = {}
    for place in bound:
        key = _once_key(place.stmt)
        if key is None:
            continue
        known = seen.setdefault(key, [])
        earlier = next((other for other in known if not exclusive(other, place, ctx)), None)
        if earlier is not None and id(place.stmt) not in reported:
            reported.add(id(place.stmt))
            _report_repetition(ctx, hook, place.stmt, earlier.stmt)
        elif earlier is None and len(known) < _COMPARED:
            known.append(place)


def _once_key(stmt: t.Stmt) -> str | None:
    if isinstance(stmt, t.Assign):
        return f"state {stmt.target.name.text}"
    return {t.Evict: "evict", t.Attend: "attend"}.get(type(stmt))


def _report_repetition(ctx: Context, hook: str, stmt: t.Stmt, first: t.Stmt) -> None:
    line = first.span.line
    if isinstance(stmt, t.Assign):
        name = stmt.target.name.text
        message = f"`{name}` is updated twice in `{hook}`: line {line} does it already"
        ctx.report("S504", stmt, message, "write one equation, with `let` for the steps in between, or branch with `else`")
        return
    word = "evict" if isinstance(stmt, t.Evict) else "attend"
    joined = "one keep set" if word == "evict" else "one set with `|`"
    message = f"`{word}` runs twice on one path of `{hook}`: line {line} does it already"
    ctx.report("S508", stmt, message, f"write {joined}, or put the second into `else`")


# ---- states of pages ----------------------------------------------------------------------------


def _check_page_states(ctx: Context) -> None:
    culprit = next((place.stmt for place in all_places(ctx.method) if _breaks_pages(ctx, place.stmt)), None)
    for state in ctx.method.of(t.State):
        letters = [index.name.text for index in state.target.indices if isinstance(index, t.Ref)]
        if culprit is None or not any(ctx.letters.get(letter) == "page" for letter in letters):
            continue
        deed = "evicted" if isinstance(culprit, t.Evict) else "moved one by one"
        message = f"`{state.target.name.text}` is kept per page, but rows are {deed} at line {culprit.span.line}: pages change"
        helps = f"index it by token (`t`), or derive it with `summary {text_of(state.target, ctx)}`"
        ctx.report("S509", state.target, message, helps)


def _breaks_pages(ctx: Context, stmt: t.Stmt) -> bool:
    """Evictions and moves of rows change what a page holds; moves of whole pages do not."""
    if isinstance(stmt, t.Move):
        return not any(ctx.letters.get(letter) == "page" for letter in ctx.type_of(stmt.rows).base)
    return isinstance(stmt, t.Evict)
