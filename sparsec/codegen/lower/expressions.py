"""Numbers and truth values: names, arithmetic, elementwise functions. Reductions and sets have files of their own."""

from __future__ import annotations

from dataclasses import replace

from sparsec.codegen.lower import build, reductions, sets
from sparsec.codegen.lower.scope import Scope
from sparsec.codegen.plan import Op, canonical
from sparsec.codegen.unsupported import unsupported
from sparsec.dsl import tree as t
from sparsec.dsl.fold import truth
from sparsec.dsl.names import FACTS, SETS, TENSORS

_BINARY = {
    "+": "add", "*": "mul", "//": "floordiv", "%": "mod", "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
}  # fmt: skip
_ELEMENTWISE = ("abs", "exp", "log", "sqrt", "relu", "sigmoid")
_ROUNDING = ("floor", "ceil", "round")
_KINDS = {"f32": "real", "f16": "real", "bf16": "real", "model": "model", "i32": "int", "i64": "int", "bool": "bool", "set": "set"}


def lower(expr: t.Expr, scope: Scope) -> Op:
    """The op that computes an expression."""
    match expr:
        case t.Int() | t.Float():
            return build.const(expr.value)
        case t.Unary(op="-"):
            return build.arithmetic("neg", lower(expr.operand, scope))
        case t.Unary():
            return build.logic("not", lower(expr.operand, scope))
        case t.Binary():
            return _binary(expr, scope)
        case t.Call():
            return sets.positional(expr, scope) if sets.is_positional(expr) else _call(expr, scope)
        case t.Reduce():
            return sets.ranked(expr, scope) if sets.is_ranked(expr) else reductions.lower(expr, scope)
        case t.Ref():
            return _ref(expr, scope)
    unsupported("this expression", expr.span, "literal sets of layers belong in a `for` guard")


def _binary(expr: t.Binary, scope: Scope) -> Op:
    if expr.op in ("in", "not in"):
        unsupported("a membership test outside a `for` guard", expr.span, "use a set expression: `|`, `&`, `-`")
    left, right = lower(expr.left, scope), lower(expr.right, scope)
    match expr.op:
        case "|" | "&":
            return sets.combine("or" if expr.op == "|" else "and", left, right, scope)
        case "-" if left.kind == "set":
            return sets.combine("minus", left, right, scope)
        case "-":
            return build.arithmetic("sub", left, right)
        case "/":
            return build.apply("ratio", left, right, kind="real" if "real" in (left.kind, right.kind) else "ratio")
        case "and" | "or":
            return build.logic(expr.op, left, right)
        case "implies":
            return build.logic("or", build.logic("not", left), right)
        case "==" | "!=" | "<" | "<=" | ">" | ">=":
            return build.apply(_BINARY[expr.op], left, right, kind="bool")
    return build.arithmetic(_BINARY[expr.op], left, right)


def _call(expr: t.Call, scope: Scope) -> Op:
    name = expr.name.text
    if name == "rows":
        return _rows(expr, scope)
    if name in ("min", "max") and len(expr.args) > 1:
        first, *others = (lower(arg, scope) for arg in expr.args)
        for other in others:
            first = build.arithmetic({"min": "least", "max": "greatest"}[name], first, other)
        return first
    if name == "where":
        return _where(*(lower(arg, scope) for arg in expr.args), scope)
    if name in _ROUNDING:
        return build.apply(name, lower(expr.args[0], scope), kind="int")
    if name in _ELEMENTWISE:
        return build.apply(name, lower(expr.args[0], scope), kind="real")
    if name == "clip":
        bounds = [lower(arg, scope) for arg in expr.args]
        low = build.arithmetic("greatest", bounds[0], bounds[1])
        return build.arithmetic("least", low, bounds[2]) if len(bounds) > 2 else low
    if name in ("pages", "pages_for", "tokens"):
        return _page_units(name, lower(expr.args[0], scope))
    if name == "order":
        return _order(expr.args[0], scope)
    unsupported(f"`{name}(...)` here", expr.span, "the ten shipped methods show what compiles; the reference target runs everything")


def _order(letter: t.Expr, scope: Scope) -> Op:
    """The rank of a row among those of its layer and head, or that of a query's own row."""
    assert isinstance(letter, t.Ref), "the checker lets an index letter pass alone"
    if scope.names.letters[letter.name.text] == "query":
        return _of_queries("order", ("i", "h"), letter, scope)
    return _paged(build.value("read", "order", axes=("h", letter.name.text), kind="int"), scope)


def _page_units(name: str, value: Op) -> Op:
    size = build.value("page_size", host=True)
    if name == "tokens":
        return build.arithmetic("mul", value, size)
    if name == "pages":
        return build.arithmetic("floordiv", value, size)
    rounded = build.arithmetic("sub", build.arithmetic("add", value, size), build.const(1))
    return build.arithmetic("floordiv", rounded, size)


def _rows(expr: t.Call, scope: Scope) -> Op:
    zone = expr.args[0].name.text
    part = expr.args[1].name.text if len(expr.args) > 1 else "K"
    return build.value("rows", zone, part, axes=scope.names.row_axes)


def _where(condition: Op, yes: Op, no: Op, scope: Scope) -> Op:
    if yes.kind == "set":
        yes, no = sets.aligned(yes, no, scope)
        return build.apply("where", condition, yes, no, kind="set")
    kind = build.arithmetic("add", yes, no).kind if yes.kind != "bool" else "bool"
    return build.apply("where", condition, yes, no, kind=kind)


def _ref(expr: t.Ref, scope: Scope) -> Op:
    name, names = expr.name.text, scope.names
    known = truth(expr)
    if known is not None:
        return build.const(known)
    if name in scope.later:
        return lower(scope.later[name].value, scope)
    if name in scope.stale:
        unsupported(f"`{name}` after an eviction in the same hook: its rows have moved", expr.span, "define it again after `evict`", "S915")
    if name in scope.lets:
        return _indexed(scope.lets[name], expr, scope)
    if name in names.states:
        return _state(expr, scope)
    if name in names.summaries:
        item = names.summaries[name]
        letters = tuple(str(i.name) for i in item.target.indices)
        return _renamed(build.value("summary", name, axes=canonical(set(letters)), kind=_KINDS[item.dtype.name.text]), letters, expr, scope)
    if name in names.params:
        return build.value("param", name, kind="ratio" if names.params[name].unit.text == "ratio" else "int")
    if name in names.zones:
        return sets.zone(name, scope)
    if name in SETS:
        return sets.named(expr, scope)
    if name in TENSORS:
        return _tensor(expr, scope)
    if name in FACTS:
        return _fact(expr, scope)
    if name in names.letters:
        if names.letters[name] in ("query", "hidden_width"):
            unsupported(f"the index `{name}` as a value", expr.span, "rank of a query's own row: `order(i)`", "S904")
        return build.value("index", name, axes=(name,))
    unsupported(f"`{name}` here", expr.span, "the reference target runs everything: `--target reference`")


def _fact(expr: t.Ref, scope: Scope) -> Op:
    name = expr.name.text
    match name:
        case "len" | "prompt_rows":
            return build.value(name, axes=scope.names.row_axes)
        case "steps":
            return build.value(name)
        case "prompt_done":
            return build.value(name, kind="bool")
        case "prefilling":
            return build.value(name, kind="bool", host=True)
        case "decoding":
            return build.logic("not", build.value("prefilling", kind="bool", host=True))
        case "layer":
            return build.value(name)
    if not FACTS[name].model:
        unsupported(f"`{name}`", expr.span, "use a param, or a fact of the model")
    return build.value("fact", name, kind="ratio" if name == "scale" else "int", host=True)


def _state(expr: t.Ref, scope: Scope) -> Op:
    item = scope.names.states[expr.name.text]
    letters = tuple(str(i.name) for i in item.target.indices) or ((item.dtype.letter.text,) if item.dtype.letter else ())
    if "l" in letters:
        unsupported("a state with a layer index", item.target.span, "use a `shared` state for values of one step", "S902")
    source = "shared" if item.shared else "state"
    kind = _KINDS.get(item.dtype.name.text)
    if kind is None:
        unsupported(f"a state of dtype `{item.dtype.name}`", item.dtype.span, "use f32, i32, bool or a set", "S902")
    axes = canonical(set(letters) | ({item.dtype.letter.text} if item.dtype.letter else set()))
    return _renamed(build.value(source, expr.name.text, axes=axes, kind=kind), letters, expr, scope)


def _tensor(expr: t.Ref, scope: Scope) -> Op:
    name = expr.name.text
    letters = TENSORS[name].letters
    if name in ("KV_raw", "hidden"):
        unsupported(f"`{name}`", expr.span, "read K, V or K_raw", "S903")
    if name in ("Q", "probs", "logits"):
        return _renamed(_of_queries(name, letters, expr, scope), letters, expr, scope)
    axes = ("h", "t") if name == "pos" else canonical(set(letters))
    read = build.value("read", name, axes=axes, kind="int" if name == "pos" else "model")
    return _renamed(read, letters, expr, scope)


def _of_queries(name: str, letters: tuple[str, ...], expr: t.Ref, scope: Scope) -> Op:
    if scope.queries is None and scope.in_blocks and not scope.in_selection:
        unsupported(
            f"`{name}` outside a reduction over i: the queries of a chunk come in blocks", expr.span,
            "reduce over i first, with sum[i], mean[i], max[i] or min[i]", "S904",
        )  # fmt: skip
    source = scope.queries or build.value("step", kind="model")
    kind = {"Q": "model", "order": "int"}.get(name, "real")
    return Op("of_queries", (source,), (name,), canonical(set(letters)), kind)


def _renamed(op: Op, letters: tuple[str, ...], expr: t.Ref, scope: Scope) -> Op:
    """The op under the letters that the reference uses: `score[s, h]`, and slots of a page inside `[t in p]`."""
    used = tuple(i.name.text if isinstance(i, t.Ref) else "" for i in expr.indices)
    assert set(used) <= set(scope.names.letters), f"line {expr.span.line}: an index of `{expr.name}` is no letter: the checker lets none pass"
    rename = dict(zip(letters, used))
    axes = tuple(rename.get(a, a) for a in op.axes)
    if axes != canonical(set(axes)):
        unsupported("indices whose order differs from the declaration", expr.span, f"write `{expr.name}[{', '.join(letters)}]`", "S905")
    if axes != op.axes:
        support = None if op.support is None else replace(op.support, axes=tuple(rename.get(a, a) for a in op.support.axes))
        op = replace(op, axes=axes, support=support)
    return _paged(op, scope)


def _paged(op: Op, scope: Scope) -> Op:
    """Rows as slots of their pages, inside `[t in p]`."""
    for token, page in scope.paged.items():
        if token in op.axes:
            op = reductions.split(op, token, page)
    return op


def _indexed(op: Op, expr: t.Ref, scope: Scope) -> Op:
    """A `let` under other letters, or with `layer` in place of l."""
    letters = scope.letters_of.get(expr.name.text, ())
    picked = [i for i in expr.indices if not (isinstance(i, t.Ref) and i.name.text in scope.names.letters)]
    if not picked:
        return _renamed(op, letters, expr, scope) if expr.indices else op
    index = lower(picked[0], scope)
    assert len(picked) == 1 and "l" in op.axes and not index.axes, f"line {expr.span.line}: only l can be picked: the checker lets nothing else pass"
    axes = tuple(a for a in op.axes if a != "l")
    return Op("pick", (op, index), ("l",), axes, op.kind, False, op.thin, op.support)
