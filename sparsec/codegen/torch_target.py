"""Plan ops to vectorised torch text over the axes `[row] + letters`. Decides spelling and nothing else.

Values that are used twice, and parts of lines that would not fit, become locals named by what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from keyword import iskeyword

from sparsec.codegen.lower.scope import RESERVED
from sparsec.codegen.lower.walks import ops_of
from sparsec.codegen.plan import (
    Accumulate, Attend, Bind, Binding, Evict, Move, Op, Record, Skip, Step, SummaryPlan, Update, canonical,
)  # fmt: skip

WIDTH = 112
_HEAVY = {"positional", "rank", "keep", "reduce", "smooth", "apportion", "pages_to_tokens", "split", "summary", "state", "shared"}
_ALWAYS_LOCAL = {"window", "step"}
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


def python_name(name: str) -> str:
    """How a param or `let` is called in generated code."""
    return name + "_" if iskeyword(name) or name in RESERVED else name


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of Python and how tightly its outermost operator binds (10: an atom)."""

    text: str
    level: int = 10
    parts: tuple[str, tuple[str, ...]] | None = None  # of a call: the function and its arguments, to break a long line

    def at(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


@dataclass(slots=True)
class Writer:
    """The lines of one function. `source`: the spec's lines, cited before the statements that come from them."""

    source: tuple[str, ...]
    uses: Counter[Op]
    lines: list[str] = field(default_factory=list)
    known: dict[Op, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    indent: str = "    "
    cited: int = 0

    # ---- lines ------------------------------------------------------------------------------

    def cite(self, line: int) -> None:
        """The spec line as a comment, once for all that comes from it."""
        if line != self.cited:
            text = f"{self.indent}# line {line}: {self.source[line - 1].strip()}"
            self.lines.append(text if len(text) <= 118 else text[:115] + "...")
            self.cited = line

    def put(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def assign(self, name: str, op: Op) -> None:
        text = self.value(op, root=True)
        if len(self.indent) + len(name) + 3 + len(text.text) <= WIDTH or text.parts is None:
            self.put(f"{name} = {text.text}")
        else:
            self.call(f"{name} = {text.parts[0]}", list(text.parts[1]))

    def call(self, function: str, args: list[str]) -> None:
        """A call on one line, or with one argument a line."""
        text = f"{function}({', '.join(args)})"
        if len(self.indent + text) <= WIDTH:
            self.put(text)
            return
        self.put(f"{function}(")
        self.lines.extend(f"{self.indent}    {arg}," for arg in args)
        self.put(")")

    def short(self, op: Op, limit: int = 44) -> Text:
        """The value, as a local where its text is long."""
        text = self.value(op)
        return self.local(op) if len(text.text) > limit and op.name != "local" else text

    def local(self, op: Op) -> Text:
        """Bind the op to a fresh name, unless it has one."""
        if op not in self.known:
            name = self.fresh(_wish(op))
            self.assign(name, op)
            self.known[op] = name
        return Text(self.known[op])

    def fresh(self, wish: str) -> str:
        name, n = wish, 2
        while name in self.taken or name in RESERVED - {"step"}:
            name, n = f"{wish}_{n}", n + 1
        self.taken.add(name)
        return name

    # ---- values -----------------------------------------------------------------------------

    def value(self, op: Op, root: bool = False) -> Text:
        """The text of an op; `root`: a statement of its own binds it, so it is not bound again."""
        if op in self.known:
            return Text(self.known[op])
        if not root and (op.name in _ALWAYS_LOCAL or self.uses[op] > 1 and _is_heavy(op)):
            return self.local(op)
        return _PRINTERS[op.name](self, op)

    def args(self, op: Op, budget: int = 96) -> list[Text]:
        """The texts of the arguments; the longest become locals until all fit on a line."""
        texts = [self.value(arg) for arg in op.args]
        while sum(len(text.text) for text in texts) > budget:
            longest = max(range(len(texts)), key=lambda n: len(texts[n].text))
            if len(texts[longest].text) < 28 or op.args[longest].name in ("local", "const"):
                return texts
            texts[longest] = self.local(op.args[longest])
        return texts

    def aligned(self, op: Op, text: Text, axes: tuple[str, ...]) -> Text:
        """The value indexed so that its axes meet `axes`: None where it has no such axis, 0 where a thin h goes."""
        if op.host or op.axes == axes:
            return text
        index = [":"]
        for axis in sorted(set(axes) | set(op.axes), key=_order_of(axes, op.axes)):
            index.append("0" if axis not in axes else ":" if axis in op.axes else "None")
        while index[-1] == ":":
            index.pop()
        return Text(f"{text.at(10)}[{', '.join(index)}]") if index else text


def _call(function: str, *args: str) -> Text:
    return Text(f"{function}({', '.join(args)})", 10, (function, args))


def _is_heavy(op: Op) -> bool:
    """Worth a name where it is used twice; sets that the view has at hand are not."""
    return op.name in _HEAVY and (op.name != "positional" or bool(op.args) or op.detail[0] == "open_page")


def _order_of(*axes: tuple[str, ...]) -> Callable[[str], int]:
    return canonical(frozenset[str]().union(*axes)).index


def _wish(op: Op) -> str:
    match op.name:
        case "window":
            return "newest"
        case "step":
            return "step"
        case "positional":
            return f"{op.detail[0]}_rows" if op.detail[1] is None else f"{op.detail[0]}_of_{op.detail[1]}"
        case "reduce" | "smooth" | "rank":
            return str(op.detail[0]) + "_over_" + "_".join(str(d) for d in op.detail[1:] if isinstance(d, str))
        case "state" | "shared" | "summary":
            return python_name(str(op.detail[0]))
        case "keep":
            return "kept"
        case "pages_to_tokens":
            return "rows_of_pages"
        case "split":
            return "slots"
        case "widen":
            return _wish(op.args[0])
    return "part"


# ---- one printer per op -----------------------------------------------------------------------


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
    return Text(f"{w.value(op.args[0]).text}.{op.detail[0]}")


def _index(_w: Writer, op: Op) -> Text:
    letter = str(op.detail[0])
    size = {"t": "view.valid.shape[-1]", "s": "view.valid.shape[-1]", "p": "view.page_valid.shape[-1]"}.get(letter)
    return _call("ops.index", size or f'view.fact("{_SIZES[letter]}")', "view.device")


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
    function = {"least": "min", "greatest": "max"}.get(fn, _FUNCTIONS[fn]) if op.host else _FUNCTIONS[fn]
    return _call(function, *(x.text for x in texts))


def _where(op: Op, texts: list[Text]) -> Text:
    condition, yes, no = texts
    if op.args[0].host:
        return Text(f"{yes.at(1)} if {condition.at(1)} else {no.at(1)}", 0)
    return _call("torch.where", condition.text, yes.text, no.text)


def _dims(op: Op, letters: tuple[object, ...]) -> str:
    dims = [str(1 + op.axes.index(str(letter))) for letter in letters]
    return dims[0] if len(dims) == 1 else f"({', '.join(dims)})"


def _reduce(w: Writer, op: Op) -> Text:
    fn, letters, arg = str(op.detail[0]), op.detail[1:], op.args[0]
    paged = _page_reduction(w, op)
    if paged is not None:
        return paged
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
    return _call(f"ops.{_MASKED_REDUCTIONS[fn]}", value.text, mask.text, dims)


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
    return Text(f"{value.at(10)}[{':, ' * axis}{index.text}]")


def _positional(w: Writer, op: Op) -> Text:
    name, zone, part = op.detail
    members = "view.valid" if zone is None else f'view.in_zone("{zone}")' if part is None else f'view.in_zone("{zone}", "{part}")'
    if name == "all":
        return Text(members)
    if name == "all_pages":
        return Text("view.page_valid")
    if name == "open_page":
        return Text("ops.open_page(view.valid, view.page_size)")
    return Text(f"ops.{name}({members}, {w.value(op.args[0]).text})")


def _counted(w: Writer, op: Op) -> str:
    """A count keeps its leading axes; the op adds the trailing ones."""
    while op.name == "widen" and op.axes[: len(op.args[0].axes)] == op.args[0].axes:
        op = op.args[0]
    return w.value(op).text


def _rank(w: Writer, op: Op) -> Text:
    fn, *letters = op.detail
    score, candidates = (w.aligned(a, w.short(a), op.axes) for a in op.args[:2])
    return _call(f"ops.{fn}", score.text, candidates.text, _counted(w, op.args[2]), _dims(op, tuple(letters)))


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
    return _call("ops.keep", str(first), f"[{', '.join(rankings)}]", *upto)


def _widened(w: Writer, op: Op) -> str:
    """A mask or score under the axes of the ranking; what is long has a name before it is indexed."""
    return w.aligned(op.args[0], w.short(op.args[0]), op.axes).text if op.name == "widen" else w.short(op).text


def _pages_to_tokens(w: Writer, op: Op) -> Text:
    return _call("ops.pages_to_tokens", w.short(op.args[0]).text, "view.page_size", "view.valid.shape[-1]")


def _pages_of(w: Writer, op: Op) -> Text:
    return Text(f"ops.page_any({w.value(op.args[0]).text}, view.page_size)")


_PRINTERS: dict[str, Callable[[Writer, Op], Text]] = {
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


# ---- steps --------------------------------------------------------------------------------------


def write_binding(binding: Binding, source: tuple[str, ...]) -> tuple[str, ...]:
    """The body of one function, indented by 4."""
    bound = {s.name for s in binding.steps if isinstance(s, Bind | Accumulate)}
    writer = Writer(source, Counter(ops_of(binding.steps)), taken=bound | {python_name(p) for p in binding.params})
    for param in binding.params:
        writer.put(f'{python_name(param)} = view.param("{param}")')
    for step in binding.steps:
        _write_step(writer, step)
    return tuple(writer.lines)


def _write_step(w: Writer, step: Step) -> None:
    w.cite(step.line)
    match step:
        case Bind():
            w.assign(step.name, step.value)
            w.known[step.value] = step.name
        case Accumulate():
            _write_loop(w, step)
        case Skip():
            text = w.value(step.condition)
            w.put(f"if not {text.at(10)}:" if step.condition.host else f"if not {text.at(10)}.any():")
            w.put("    return")
        case Record():
            _write_record(w, step.name, step.value)
            if step.value.support is not None:
                _write_record(w, f"{step.name} where", step.value.support)
        case _ if step.when is not None and step.when.host:
            before = dict(w.known)
            w.put(f"if {w.value(step.when).text}:")
            w.indent += "    "
            _write_effect(w, step, None)
            w.indent, w.known = w.indent[:-4], before
            _forget(w)
        case _:
            _write_effect(w, step, step.when)


def _write_effect(w: Writer, step: Update | Evict | Move | Attend, when: Op | None) -> None:
    """What a statement changes; rows outside `when` keep what they have."""
    match step:
        case Update():
            value = w.aligned(step.value, w.short(step.value, 80), step.axes).text
            if when is not None:
                old = f'view.{"shared" if step.shared else "state"}("{step.target}")'
                value = f"torch.where({_masked(w, when, step.axes).text}, {value}, {old})"
            w.call("view.set_shared" if step.shared else "view.set_state", [f'"{step.target}"', value])
        case Evict():
            keep = w.short(step.keep, 90 if when is None else 64)
            w.call("view.evict", [_or_not(w, keep, when, ("h", "t"))])
        case Move():
            part = f'"{step.part}"' if step.part is not None else "None"
            rows = w.short(step.rows, 80 if when is None else 60)
            w.call("view.move", [part, rows.text if when is None else f"{rows.at(7)} & {_masked(w, when, ('h', 't')).at(8)}", f'"{step.zone}"'])
        case Attend():
            axes = ("i", "h", "g", "t")
            read = w.aligned(step.read, w.short(step.read, 64 if when is None else 36), axes)
            w.call("view.attend", [_or_not(w, read, when, axes)])
    if not isinstance(step, Attend):
        _forget(w)


def _write_record(w: Writer, name: str, value: Op) -> None:
    letters = ", ".join(f'"{a}"' for a in value.axes)
    w.call("view.record", [f'"{name}"', w.value(value).text, f"({letters}{',' if len(value.axes) == 1 else ''})"])


def _or_not(w: Writer, mask: Text, when: Op | None, axes: tuple[str, ...]) -> str:
    """The mask, and everything in rows where nothing is to happen."""
    return mask.text if when is None else f"{mask.at(5)} | ~{_masked(w, when, axes).at(10)}"


def _masked(w: Writer, when: Op, axes: tuple[str, ...]) -> Text:
    return w.aligned(when, w.value(when), axes)


def _forget(w: Writer) -> None:
    """Rows, zones or states changed: only names that the plan bound keep their values."""
    w.known = {op: name for op, name in w.known.items() if op.name in ("window", "step")}


def _write_loop(w: Writer, step: Accumulate) -> None:
    before = dict(w.known)
    w.put(f"{step.name} = None")
    w.put("for block in view.blocks():")
    w.indent += "    "
    part = w.fresh("part")
    w.assign(part, step.value)
    combined = f"torch.{step.fn}imum({step.name}, {part})" if step.fn in ("max", "min") else f"{step.name} + {part}"
    w.put(f"{step.name} = {part} if {step.name} is None else {combined}")
    w.indent = w.indent[:-4]
    w.known = before
    if step.fn == "mean":
        w.put(f"{step.name} = {step.name} / view.Q.shape[1]")


def write_summary(summary: SummaryPlan) -> tuple[str, ...]:
    writer = Writer((), Counter())
    writer.put(f"return {writer.value(summary.value, root=True).text}")
    return tuple(line.replace("view.", "pages.") for line in writer.lines)
