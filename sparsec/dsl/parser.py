"""Text to syntax tree. One Lark grammar, one builder; no names are resolved here.

The builder is iterative and refuses deep nesting, so hostile input ends in a diagnostic and not in a stack overflow.
What is wrong with a text that does not parse is said by `recovery.py` and `expected.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput
from lark.tree import Meta

from sparsec.diagnostics import Diagnostic, Source, SpecError
from sparsec.dsl import tree as t
from sparsec.dsl.expected import wrong_version
from sparsec.dsl.limits import MAX_DEPTH, too_deep, too_long, unreadable
from sparsec.dsl.recovery import syntax_errors

LANGUAGE_VERSION = 1


@lru_cache(maxsize=1)
def grammar() -> Lark:
    text = files("sparsec.dsl").joinpath("sparse.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="basic", propagate_positions=True, maybe_placeholders=False)


def parse(source: Source) -> t.SparseFile:
    """Parse one file. Raises SpecError with codes S0xx where the text is not a `.sparse` file."""
    refused = unreadable(source.text)
    if refused:
        raise SpecError(source, refused)
    try:
        raw = grammar().parse(source.text)
    except UnexpectedInput as error:
        raise SpecError(source, syntax_errors(grammar(), source.text, error, LANGUAGE_VERSION)) from None
    refused = _too_long(raw)
    if refused:
        raise SpecError(source, refused)
    built = _build(raw, source)
    if built.version != LANGUAGE_VERSION:
        raise SpecError(source, (wrong_version(built.version, LANGUAGE_VERSION, _span(raw.children[0].meta)),))
    return built


def _too_long(raw: Tree) -> tuple[Diagnostic, ...]:
    found = (too_long(child) for node in raw.iter_subtrees_topdown() for child in node.children if isinstance(child, Token))
    return tuple(one for one in found if one is not None)


def _build(raw: Tree, source: Source) -> t.SparseFile:
    """Children before parents, without recursion."""
    done: dict[int, object] = {}
    depth: dict[int, int] = {}
    for node in raw.iter_subtrees():
        level = 1 + max((depth[id(c)] for c in node.children if isinstance(c, Tree)), default=0)
        if level > MAX_DEPTH:
            raise SpecError(source, (too_deep(_span(node.meta)),))
        depth[id(node)] = level
        parts = [done[id(child)] if isinstance(child, Tree) else child for child in node.children]
        done[id(node)] = _BUILDERS[node.data](parts, _span(node.meta))
    return done[id(raw)]


def _span(meta: Meta | Token) -> t.Span:
    if isinstance(meta, Meta) and meta.empty:
        return t.NOWHERE
    return t.Span(meta.start_pos, meta.end_pos, meta.line, meta.column, meta.end_line, meta.end_column)


def _ident(token: Token) -> t.Ident:
    return t.Ident(str(token), span=_span(token))


def _text(token: Token) -> str:
    return str(token)[1:-1]


def _split_arguments(parts: list) -> tuple[tuple[t.Expr, ...], tuple[t.Keyword, ...]]:
    return (tuple(p for p in parts if isinstance(p, t.Expr)), tuple(p for p in parts if isinstance(p, t.Keyword)))


def _first(parts: list, kind: type, default: object = None) -> object:
    return next((part for part in parts if isinstance(part, kind)), default)


def _doc(parts: list) -> str | None:
    return next((_text(p) for p in parts if isinstance(p, Token) and p.type == "STRING"), None)


def _names(parts: list) -> list[t.Ident]:
    return [_ident(p) for p in parts if isinstance(p, Token) and p.type in ("NAME", "REDUCE")]


class _When(tuple):
    """Marker: (condition,) of a hook's `when`, to tell it from its `for`."""


class _For(tuple):
    """Marker: (condition,) of a hook's `for`."""


class _Block(tuple):
    """Marker: the statements of one pair of braces."""


class _Otherwise(tuple):
    """Marker: the statements of an `else`."""


class _Upto(tuple):
    """Marker: (bound,) of a ranking."""


class _Range(tuple):
    """Marker: (high,) or () after `..`."""


class _Names(tuple):
    """Marker: a comma-separated list of names."""


class _Args(tuple):
    """Marker: the arguments of a call."""


def _method(parts: list, span: t.Span) -> t.Method:
    return t.Method(_ident(parts[0]), _doc(parts[1:]), tuple(p for p in parts if isinstance(p, t.Item)), span=span)


def _param(parts: list, span: t.Span) -> t.Param:
    name, unit = _names(parts[:2])
    return t.Param(name, unit, _first(parts, t.Bound), _first(parts, t.Expr), _doc(parts), span=span)


def _bound(parts: list, span: t.Span) -> t.Bound:
    tail = _first(parts, _Range)
    high = tail[0] if tail else None
    return t.Bound(parts[0], high, tail is not None, span=span)


def _domain(parts: list, span: t.Span) -> t.Domain:
    (name, letter), (kind, base, by, upto) = _names(parts[:2]), parts[2]
    return t.Domain(name, letter, kind, base, by, upto, span=span)


def _weight(parts: list, span: t.Span) -> t.Weight:
    name, letters, dtype, source = parts
    key, value = source if isinstance(source, tuple) else (None, source)
    return t.Weight(_ident(name), tuple(letters), dtype, key, value, span=span)


def _zone(parts: list, span: t.Span) -> t.Zone:
    tier = _first(parts, t.Ident)
    body = _first(parts, _Block)
    return t.Zone(_ident(parts[0]), tier, tuple(body or ()), body is not None, span=span)


def _state(parts: list, span: t.Span) -> t.State:
    shared = any(isinstance(p, Token) and p.type == "SHARED" for p in parts)
    return t.State(parts[0], parts[1], parts[2], shared, span=span)


def _dtype(parts: list, span: t.Span) -> t.Dtype:
    args, keywords = _split_arguments(list(parts[1]) if len(parts) > 1 else [])
    return t.Dtype(_ident(parts[0]), args, keywords, span=span)


def _set_of(parts: list, span: t.Span) -> t.Dtype:
    return t.Dtype(t.Ident("set", span=span), letter=_ident(parts[0]), span=span)


def _hook(parts: list, span: t.Span) -> t.Hook:
    guard, when = _first(parts, _For), _first(parts, _When)
    return t.Hook(
        tuple(parts[0]), guard[0] if guard else None, when[0] if when else None, tuple(_first(parts, _Block)), span=span
    )


def _assign(parts: list, span: t.Span) -> t.Assign:
    op = "+=" if isinstance(parts[1], Token) else "="
    return t.Assign(parts[0], op, parts[-1], span=span)


def _move(parts: list, span: t.Span) -> t.Move:
    component = _first(parts, t.Ident)
    return t.Move(component, _first(parts, t.Expr), _ident(parts[-1]), span=span)


def _branch(parts: list, span: t.Span) -> t.Branch:
    return t.Branch(parts[0], tuple(parts[1]), tuple(_first(parts, _Otherwise, ())), span=span)


def _ranked(parts: list, span: t.Span) -> t.Ranking:
    bound = _first(parts, _Upto)
    return t.Ranking(tuple(p for p in parts if isinstance(p, t.Expr)), bound[0] if bound else None, span=span)


def _call(parts: list, span: t.Span) -> t.Call:
    args, keywords = _split_arguments(list(parts[1]))
    return t.Call(_ident(parts[0]), args, keywords, span=span)


def _reduce(parts: list, span: t.Span) -> t.Reduce:
    args, keywords = _split_arguments(list(parts[-1]))
    return t.Reduce(_ident(parts[0]), tuple(p for p in parts if isinstance(p, t.Binder)), args, keywords, span=span)


def _ref(parts: list, span: t.Span) -> t.Ref:
    return t.Ref(_ident(parts[0]), tuple(parts[1:]), span=span)


def _binary(op: str) -> Callable[[list, t.Span], t.Binary]:
    return lambda parts, span: t.Binary(op, parts[0], parts[-1], span=span)


def _binder(parts: list, span: t.Span) -> t.Binder:
    return t.Binder(_ident(parts[0]), parts[1] if len(parts) > 1 else None, span=span)


_BUILDERS: dict[str, Callable[[list, t.Span], object]] = {
    "start": lambda p, s: t.SparseFile(p[0], p[1], span=s),
    "version": lambda p, s: int(p[0]),
    "method": _method,
    "cite": lambda p, s: t.Cite(_text(p[0]), span=s),
    "param": _param,
    "bound": _bound,
    "range": lambda p, s: _Range(p or (None,)),
    "domain": _domain,
    "fixed": lambda p, s: ("fixed", None, None, p[0]),
    "subset": lambda p, s: ("subset", _ident(p[0]), None, p[1]),
    "groups": lambda p, s: ("groups", _ident(p[0]), p[1], p[2]),
    "weight": _weight,
    "from_checkpoint": lambda p, s: (_text(p[0]), None),
    "computed": lambda p, s: (None, p[0]),
    "layers": lambda p, s: t.Layers(_ident(p[0]), p[1], span=s),
    "zone": _zone,
    "tier": lambda p, s: _ident(p[0]),
    "zone_body": lambda p, s: _Block(p),
    "store": lambda p, s: t.Store(p[0], p[1], p[2], span=s),
    "decode": lambda p, s: t.Decode(p[0], p[1], span=s),
    "state": _state,
    "summary": lambda p, s: t.Summary(p[0], p[1], p[2], span=s),
    "dtype": _dtype,
    "set_of": _set_of,
    "ensure": lambda p, s: t.Ensure(_text(p[0]), p[1], span=s),
    "invariant": lambda p, s: t.Invariant(_ident(p[0]), span=s),
    "schedule": lambda p, s: t.Schedule(tuple(p), span=s),
    "entry": lambda p, s: t.Entry(_ident(p[0]), p[1], span=s),
    "hook": _hook,
    "layer_guard": lambda p, s: _For(p),
    "when": lambda p, s: _When(p),
    "block": lambda p, s: _Block(p),
    "let": lambda p, s: t.Let(p[0], p[1], span=s),
    "assign": _assign,
    "evict": lambda p, s: t.Evict(p[0], span=s),
    "move": _move,
    "component": lambda p, s: _ident(p[0]),
    "attend": lambda p, s: t.Attend(p[-1], len(p) > 1, span=s),
    "blend": lambda p, s: t.Blend(p[0], p[1], p[2], p[3], span=s),
    "branch": _branch,
    "otherwise": lambda p, s: _Otherwise(p[0]),
    "ranked": _ranked,
    "upto": lambda p, s: _Upto(p),
    "implies": _binary("implies"),
    "or_": _binary("or"),
    "and_": _binary("and"),
    "not_": lambda p, s: t.Unary("not", p[0], span=s),
    "compare": lambda p, s: t.Binary(str(p[1]), p[0], p[2], span=s),
    "member": _binary("in"),
    "not_member": _binary("not in"),
    "union": _binary("|"),
    "intersection": _binary("&"),
    "add": _binary("+"),
    "sub": _binary("-"),
    "mul": _binary("*"),
    "div": _binary("/"),
    "floordiv": _binary("//"),
    "mod": _binary("%"),
    "neg": lambda p, s: t.Unary("-", p[0], span=s),
    "int": lambda p, s: t.Int(int(p[0]), span=s),
    "float": lambda p, s: t.Float(str(p[0]), span=s),
    "literal_set": lambda p, s: t.SetLiteral(tuple(p), span=s),
    "call": _call,
    "reduce": _reduce,
    "word": _ref,
    "binder": _binder,
    "tensor": _ref,
    "args": lambda p, s: _Args(p),
    "keyword": lambda p, s: t.Keyword(_ident(p[0]), p[1], span=s),
    "names": lambda p, s: _Names(_names(p)),
}
