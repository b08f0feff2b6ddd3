"""Expressions that the host can evaluate: as Python text, and evaluated.

The host knows params, model facts, phase flags, the layer and row counts; never the values of tensors. Lets over `l`
or `h` become Python lists, so that `rows_here[layer]` reads the same on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from keyword import iskeyword
from math import ceil, floor
from types import CodeType

from sparsec.dsl import names
from sparsec.dsl import tree as t
from sparsec.graph.program import Program, Rule

FACTS = frozenset(name for name, fact in names.FACTS.items() if fact.model)
COUNTERS = frozenset({"len", "rows", "steps", "prompt_rows", "layer", "prompt_done", "prefilling", "decoding"})
CONSTANTS = frozenset({"true", "false", "none", "all", "K", "V"})
SIZES = {"l": "n_layers", "h": "kv_heads"}  # letters that the host can run over
FUNCTIONS = frozenset({"min", "max", "floor", "ceil", "round", "abs", "where", "pages", "pages_for", "tokens", "rows"})
_FOLDS = {"sum": "sum", "max": "max", "min": "min", "any": "any", "every": "all"}
_RESERVED = frozenset({"params", "model", "rows", "length", "layer", "page_size", "min", "max", "floor", "ceil", "round", "range"})
_OPS = {"and": "and", "or": "or", "==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_OPS |= {"+": "+", "-": "-", "*": "*", "/": "/", "//": "//", "%": "%", "in": "in", "not in": "not in", "|": "|", "&": "&"}


def host_known(expr: t.Expr, program: Program, rule: Rule | None) -> bool:
    """Whether the host can evaluate the expression (in the rule's scope) without reading a tensor."""
    lets = {let.target.name.text for let in rule.lets} if rule is not None else set()
    layers = {item.name.text for item in program.method.of(t.Layers)}
    known = FACTS | COUNTERS | CONSTANTS | layers | set(program.params) | lets | {zone.name.text for zone in program.zones}
    if not program.reads(expr, rule) <= known:
        return False
    seen: set[str] = set()
    stack: list[t.Node] = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, t.Ref) and node.name.text in lets - seen:
            seen.add(node.name.text)
            stack.append(program.let(rule, node.name.text).value)
        if not _has_python(node, program):
            return False
        stack.extend(t.children(node))
    return True


def _has_python(node: t.Node, program: Program) -> bool:
    if isinstance(node, t.Reduce):
        plain = all(b.within is None and b.letter.text in SIZES for b in node.binders) and len(node.binders) == 1
        return plain and (node.op.text in _FOLDS or node.op.text == "apportion")
    if isinstance(node, t.Call):
        return node.name.text in FUNCTIONS
    if isinstance(node, t.Ref) and node.name.text in program.letters:
        return node.name.text in SIZES
    return True


def plain_names(program: Program) -> Callable[[str], str]:
    """How spec names are spelled in Python: params and facts by key, counts by host names, lets as themselves."""

    def spell(name: str) -> str:
        if name in program.params:
            return f'params["{name}"]'
        if name in FACTS:
            return f'model["{name}"]'
        fixed = {"len": "length", "true": "True", "false": "False"}
        if name in fixed:
            return fixed[name]
        return f"{name}_" if name in _RESERVED - {"layer", "page_size"} or iskeyword(name) else name

    return spell


class Python:
    """Renders host-known expressions of one method as Python text."""

    def __init__(self, program: Program, spell: Callable[[str], str] | None = None) -> None:
        self.program = program
        self.spell = spell or plain_names(program)

    def let(self, let: t.Let) -> tuple[str, str]:
        """(name, value) of one let; a let over a letter is a list."""
        value = self(let.value)
        for index in reversed(let.target.indices):
            letter = index.name.text
            if isinstance(let.value, t.Reduce) and let.value.op.text == "apportion" and let.value.binders[0].letter.text == letter:
                value = self.apportion(let.value)
            else:
                value = f"[{value} for {letter} in range({self.spell(SIZES[letter])})]"
        return self.spell(let.target.name.text), value

    def apportion(self, expr: t.Reduce) -> str:
        letter = expr.binders[0].letter.text
        raw, total = expr.args
        return f"apportion([{self(raw)} for {letter} in range({self.spell(SIZES[letter])})], {self(total)})"

    def __call__(self, expr: t.Expr) -> str:
        match expr:
            case t.Int():
                return str(expr.value)
            case t.Float():
                return expr.text
            case t.Ref(name=name) if name.text in self.program.words:
                return repr(name.text)
            case t.Ref():
                return self.spell(expr.name.text) + "".join(f"[{self(index)}]" for index in expr.indices)
            case t.SetLiteral():
                return f"{{{', '.join(map(self, expr.items))}}}"
            case t.Unary():
                return f"(not {self(expr.operand)})" if expr.op == "not" else f"(-{self(expr.operand)})"
            case t.Binary(op="implies"):
                return f"(not {self(expr.left)} or {self(expr.right)})"
            case t.Binary():
                return f"({self(expr.left)} {_OPS[expr.op]} {self(expr.right)})"
            case t.Call():
                return self._call(expr)
            case t.Reduce():
                return self._reduce(expr)
        raise AssertionError(f"the host cannot evaluate {type(expr).__name__}: ask host_known first")

    def _call(self, expr: t.Call) -> str:
        args = [self(arg) for arg in expr.args]
        match expr.name.text:
            case "where":
                return f"({args[1]} if {args[0]} else {args[2]})"
            case "pages":
                return f"({args[0]} // {self.spell('page_size')})"
            case "pages_for":
                return f"(-(-{args[0]} // {self.spell('page_size')}))"
            case "tokens":
                return f"({args[0]} * {self.spell('page_size')})"
            case "rows":
                zone = expr.args[0].name.text
                part = expr.args[1].name.text if len(expr.args) > 1 else "K"
                return f'rows["{zone}", "{part}"]'
        return f"{expr.name.text}({', '.join(args)})"

    def _reduce(self, expr: t.Reduce) -> str:
        letter = expr.binders[0].letter.text
        if expr.op.text == "apportion":
            return f"{self.apportion(expr)}[{letter}]"
        items = f"{self(expr.args[0])} for {letter} in range({self.spell(SIZES[letter])})"
        return f"{_FOLDS[expr.op.text]}({items})"


def apportion(raw: Iterable[float], total: int) -> list[int]:
    """Whole shares that add up to `total`: rounded down, the rest to the largest remainders, ties to the lower index."""
    raw = list(raw)
    shares = [floor(share + 10.0**-names.SHARE_DIGITS) for share in raw]
    rounds, rest = divmod(total - sum(shares), len(raw))
    order = sorted(range(len(raw)), key=lambda index: (-round(raw[index] - shares[index], names.SHARE_DIGITS), index))
    for place, index in enumerate(order):
        shares[index] += rounds + (place < rest)
    return shares


HELPERS: Mapping[str, object] = {"apportion": apportion, "floor": floor, "ceil": ceil}


def compiled(text: str) -> CodeType:
    return compile(text, "<count rule>", "eval")
