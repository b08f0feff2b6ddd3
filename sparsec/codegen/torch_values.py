"""One printer per op of the plan: how torch spells it over the axes `[row] + letters`."""

from __future__ import annotations

from collections.abc import Callable

from sparsec.codegen.plan import Op
from sparsec.codegen.torch_text import Text, Writer, call_text, python_name

_SIZES = {"l": "n_layers", "h": "kv_heads", "g": "group", "c": "head_dim", "d": "head_dim", "x": "kv_width"}
_OPERATORS = {
    "add": ("+", 8), "sub": ("-", 8), "mul": ("*", 9), "floordiv": ("//", 9), "mod": ("%", 9),
    "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4),
    "and": ("&", 7), "or": ("|", 5),
}  # fmt: skip
_FUNCTIONS = {
    "least": "ops.least", "greatest": "ops.greatest", "floor": "ops.floor", "ceil": "ops.ceil", "round": "ops.round_even",
    "abs": "torch.abs", "exp": "torch.exp", "log": "torch.log", "sqrt": "torch.sqrt", "relu": "torch.relu", "sigmoid": "torch.sigmoid",
}  # fmt: skip
_PLAIN_REDUCTIONS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "any": "any", "every": "all", "norm": "norm"}
_MASKED_REDUCTIONS = {"sum": "masked_sum", "mean": "masked_mean", "max": "masked_max", "min": "masked_min"}


def _const(_w: Writer, op: Op) -> Text:
    number = op.detail[0]
    return Text(repr(number), 10 if isinstance(number, bool) or number >= 0 else 9)


def _attribute(name: str) -> Callable[[Writer, Op], Text]:
    return lambda _w, _op: Text(f"view.{name}")


def _getter(name: str) -> Callable[[Writer, Op], Text]:
    return lambda _w, op: Text(f"view.{name}({', '.join(_quoted(d) for d in op.detail)})")


def _quoted(detail: object) -> str:
    return f'"{detail}"' if isinstance(detail, str) else repr(detail)


def _read(_w: Writer, op: Op) -> Text:
    return Text(f"view.{op.detail[0]}")


def _window(w: Writer, op: Op) -> Text:
    return Text(f"view.window({w.value(op.args[0]).text})")


def _of_queries(w: Writer, op: Op) -> Text:
    if op.args[0].name == "step" and op.detail[0] == "Q":
        return Text("view.Q")
    if op.detail[0] == "order":
        source = "view" if op.args[0].name == "step" else w.value(op.args[0]).text
        return Text(f"view.order_of({source}.query_pos)")
    return Text(f"{w.value(op.args[0]).text}.{op.detail[0]}")


def _index(_w: Writer, op: Op) -> Text:
    letter = str(op.detail[0])
    size = {"t": "view.valid.shape[-1]", "s": "view.valid.shape[-1]", "p": "view.page_valid.shape[-1]"}.get(letter)
    size = size or f'view.fact("{_SIZES[letter]}")'
    return Text(f"ops.index({size}, view.device)[None]")


def _widen(w: Writer, op: Op) -> Text:
    return w.aligned(op.args[0], w.value(op.args[0]), op.axes)


def _as_real(arg: Op, text: Text, kind: str) -> Text:
    """Scores and payload meet in float32."""
    if kind == "real" and not arg.host and arg.kind in ("model", "ratio"):
        return Text(f"{text.at(10)}.float()")
    return text


def _map(w: Writer, op: Op) -> Text:
    fn = str(op.detail[0])
    texts = [w.aligned(a, _as_real(a, x, op.kind), op.axes) for a, x in zip(op.args, w.args(op))]
    match fn:
        case "not":
            return Text(f"not {texts[0].at(4)}", 3) if op.host else Text(f"~{texts[0].at(10)}", 9)
        case "and" | "or" if op.host:
            return Text(f" {fn} ".join(x.at(3) for x in texts), 2 if fn == "and" else 1)
        case "neg":
            return Text(f"-{texts[0].at(10)}", 9)
        case "minus":
            return Text(f"{texts[0].at(7)} & ~{texts[1].at(10)}", 7)
        case "ratio":
            real = op.kind == "real" or op.host
            return Text(f"{texts[0].at(9)} / {texts[1].at(10)}", 9) if real else Text(f"ops.ratio({texts[0].text}, {texts[1].text})")
        case "where":
            return _where(op, texts)
        case "empty":
            return Text(f"torch.zeros_like({texts[0].text})")
        case "filled":
            return Text(f"torch.full_like({texts[0].text}, {texts[1].text})")
        case "same":
            return texts[0]
        case "spread":
            return Text(f"torch.where({texts[1].text}, {texts[0].text}, 0)") if op.args[0].host else texts[0]
    if fn in _OPERATORS:
        sign, level = _OPERATORS[fn]
        return Text(f"{texts[0].at(level)} {sign} {texts[1].at(level + 1)}", level)
    if op.host and fn in ("floor", "ceil"):
        return Text(f"int({texts[0].at(9)} // 1)") if fn == "floor" else Text(f"-int(-{texts[0].at(10)} // 1)", 9)
    function = {"least": "min", "greatest": "max", "round": "round"}.get(fn, _FUNCTIONS[fn]) if op.host else _FUNCTIONS[fn]
    return call_text(function, *(x.text for x in texts))


def _where(op: Op, texts: list[Text]) -> Text:
    condition, yes, no = texts
    if op.args[0].host:
        return Text(f"{yes.at(1)} if {condition.at(1)} else {no.at(1)}", 0)
    return call_text("torch.where", condition.text, yes.text, no.text)


def _dims(op: Op, letters: tuple[object, ...]) -> str:
    dims = [str(1 + op.axes.index(str(letter))) for letter in letters]
    return dims[0] if len(dims) == 1 else f"({', '.join(dims)})"


def _mass_of_window(w: Writer, op: Op) -> Text | None:
    """The sum or mean over the real queries of a window of their probs is one call, which the runtime does as the device does it best."""
    fn, letters = str(op.detail[0]), op.detail[1:]
    if fn not in ("sum", "mean") or letters != ("i",) or len(op.args) != 2:
        return None
    probs, valid = op.args
    asked = [arg.name == "of_queries" and arg.args[0].name == "window" and arg.detail for arg in (probs, valid)]
    if asked != [("probs",), ("query_valid",)] or probs.args[0] != valid.args[0]:
        return None
    return Text(f'{w.value(probs.args[0]).text}.mass("{fn}")')


def _reduce(w: Writer, op: Op) -> Text:
    fn, letters, arg = str(op.detail[0]), op.detail[1:], op.args[0]
    special = _page_reduction(w, op) or _mass_of_window(w, op)
    if special is not None:
        return special
    texts = w.args(op)
    value = _as_real(arg, texts[0], "real" if op.kind == "real" else "")
    dims = _dims(arg, letters)
    if fn == "count":
        return Text(f"ops.count({value.text}, {dims})")
    if len(op.args) == 1:
        return Text(f"{value.at(10)}.{_PLAIN_REDUCTIONS[fn]}({dims})" if fn != "norm" else f"{value.at(10)}.norm(dim={dims})")
    mask = w.aligned(op.args[1], texts[1], arg.axes)
    if fn == "any":
        return Text(f"({value.at(7)} & {mask.at(8)}).any({dims})")
    if fn == "every":
        return Text(f"({value.at(5)} | ~{mask.at(10)}).all({dims})")
    return call_text(f"ops.{_MASKED_REDUCTIONS[fn]}", value.text, mask.text, dims)


def _page_reduction(w: Writer, op: Op) -> Text | None:
    """A reduction of rows per page has an op of its own in the runtime."""
    fn, arg = str(op.detail[0]), op.args[0]
    if op.detail[1:] != ("slot",) or len(op.args) != 2 or fn not in _MASKED_REDUCTIONS:
        return None
    if any(a.name != "split" for a in op.args) or op.args[0].args[0].axes[:2] != ("h", "t"):
        return None
    rows, members = (w.value(a.args[0]).text for a in op.args)
    assert arg.kind in ("model", "real", "int"), f"a page reduction of {arg.kind}"
    return Text(f"ops.page_{fn}({rows}, {members}, view.page_size)")


def _split(w: Writer, op: Op) -> Text:
    axis = 1 + op.args[0].axes.index(str(op.detail[0]))
    return Text(f"ops.split_pages({w.value(op.args[0]).text}, view.page_size, {axis})")


def _smooth(w: Writer, op: Op) -> Text:
    name, letter, width = op.detail
    texts = w.args(op)
    axis = 1 + op.axes.index(str(letter))
    value = w.aligned(op.args[0], texts[0], op.axes)
    if len(op.args) == 1:
        return Text(f"torch.softmax({value.text}, dim={axis}, dtype=torch.float32)")
    support = w.aligned(op.args[1], texts[1], op.axes)
    assert axis == len(op.axes), f"{name} runs over the last axis, not {letter} of {op.axes}"
    if name == "softmax":
        return Text(f"ops.softmax({value.text}, {support.text})")
    return Text(f"ops.{name}({value.text}, {support.text}{f', {width}' if width is not None else ''})")


def _apportion(w: Writer, op: Op) -> Text:
    raw, total = w.args(op)
    axis = 1 + op.axes.index(str(op.detail[0]))
    if axis == len(op.axes):
        return Text(f"ops.apportion({raw.text}, {total.text})")
    return Text(f"ops.apportion({raw.at(10)}.movedim({axis}, -1), {total.text}).movedim(-1, {axis})")


def _pick(w: Writer, op: Op) -> Text:
    value, index = w.args(op)
    axis = 1 + op.args[0].axes.index(str(op.detail[0]))
    return call_text("ops.pick", value.text, index.text, str(axis))


def _positional(w: Writer, op: Op) -> Text:
    name, zone, part, *seen = op.detail
    members = Text(_members(zone, part))
    if seen:
        members = Text("view.visible") if zone is None else Text(f"view.visible & {members.text}[:, None]", 7)
    if name == "all":
        return members
    if name == "all_pages":
        return Text("view.page_valid")
    if name == "open_page":
        return call_text("ops.open_page", members.text, "view.page_size")
    return call_text(f"ops.{name}", members.text, _quantity(w, op))


def _members(zone: object, part: object) -> str:
    return "view.valid" if zone is None else f'view.in_zone("{zone}")' if part is None else f'view.in_zone("{zone}", "{part}")'


def _quantity(w: Writer, op: Op) -> str:
    """A count per row or head, with the query axis of a relative set between."""
    count = op.args[0]
    return w.aligned(count, w.value(count), ("i", *count.axes)).text if op.axes[0] == "i" and count.axes else w.value(count).text


def _counted(w: Writer, op: Op) -> str:
    """A count keeps its leading axes; the op adds the trailing ones."""
    while op.name == "widen" and op.axes[: len(op.args[0].axes)] == op.args[0].axes:
        op = op.args[0]
    return w.value(op).text


def _rank(w: Writer, op: Op) -> Text:
    fn, *letters = op.detail
    score, candidates = (w.aligned(a, w.short(a), op.axes).text for a in op.args[:2])
    candidates = "None" if op.args[1].host else candidates
    return call_text(f"ops.{fn}", score, candidates, _counted(w, op.args[2]), _dims(op, tuple(letters)))


def _keep(w: Writer, op: Op) -> Text:
    protected, competing, *steps = op.detail
    dims = _dims(op, tuple(str(competing).split(",")))
    args = list(op.args)
    first = _widened(w, args.pop(0)) if protected is not None else None
    rankings = []
    ranks = [d for d in steps if d != "upto"]
    for kind, counted in zip(ranks[::2], ranks[1::2]):
        score, candidates = (_widened(w, args.pop(0)) for _ in range(2))
        first = first or f"torch.zeros_like({candidates})"
        count = f", {_counted(w, args.pop(0))}" if counted is not None else ""
        axes = "" if dims == str(len(op.axes)) else f", axes={dims}"
        rankings.append(f'ops.Ranking("{kind}", {score}, {candidates}{count}{axes})')
    upto = [_counted(w, args.pop(0))] if "upto" in steps else []
    return call_text("ops.keep", str(first), f"[{', '.join(rankings)}]", *upto)


def _widened(w: Writer, op: Op) -> str:
    """A mask or score under the axes of the ranking; what is long has a name before it is indexed."""
    return w.aligned(op.args[0], w.short(op.args[0]), op.axes).text if op.name == "widen" else w.short(op).text


def _pages_to_tokens(w: Writer, op: Op) -> Text:
    return call_text("ops.pages_to_tokens", w.short(op.args[0]).text, "view.page_size", "view.valid.shape[-1]")


def _pages_of(w: Writer, op: Op) -> Text:
    return Text(f"ops.page_any({w.value(op.args[0]).text}, view.page_size)")


PRINTERS: dict[str, Callable[[Writer, Op], Text]] = {
    "const": _const,
    "param": lambda _w, op: Text(python_name(str(op.detail[0]))),
    "fact": _getter("fact"),
    "layer": _attribute("layer"),
    "prefilling": lambda _w, _op: Text('view.phase == "prefill"', 4),
    "prompt_done": _attribute("prompt_done"),
    "page_size": _attribute("page_size"),
    "len": _attribute("len"),
    "prompt_rows": _attribute("prompt_rows"),
    "steps": _attribute("steps"),
    "rows": _getter("rows"),
    "read": _read,
    "state": _getter("state"),
    "shared": _getter("shared"),
    "summary": _getter("summary"),
    "step": lambda _w, _op: Text("next(view.blocks())"),
    "block": lambda _w, _op: Text("block"),
    "window": _window,
    "of_queries": _of_queries,
    "local": lambda _w, op: Text(str(op.detail[0])),
    "index": _index,
    "map": _map,
    "widen": _widen,
    "reduce": _reduce,
    "split": _split,
    "smooth": _smooth,
    "apportion": _apportion,
    "pick": _pick,
    "positional": _positional,
    "rank": _rank,
    "keep": _keep,
    "pages_to_tokens": _pages_to_tokens,
    "pages_of": _pages_of,
}
