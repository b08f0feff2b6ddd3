"""Hypothesis strategies for whole syntax trees: everything that the grammar can say, meaningful or not."""

import re

from hypothesis import strategies as st

from sparsec.dsl import tree as t
from sparsec.dsl.parser import grammar

_TERMINALS = {one.name: one.pattern.value for one in grammar().terminals}
REDUCTIONS = re.search(r"\((.*)\)", _TERMINALS["REDUCE"]).group(1).split("|")
RESERVED = {value for value in _TERMINALS.values() if value.isidentifier()} | set(REDUCTIONS)
BINARY = ("+", "-", "*", "/", "//", "%", "|", "&", "and", "or", "implies", "in", "not in", "<", "<=", ">", ">=", "==", "!=")

names = st.one_of(
    st.sampled_from(("t", "h", "budget", "probs", "K", "recent", "where")),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True).filter(lambda name: name not in RESERVED),
)
idents = names.map(t.Ident)
words = st.sampled_from(REDUCTIONS).map(t.Ident)
texts = st.text(st.characters(exclude_characters='"\n', exclude_categories=("C", "Zl", "Zp")), max_size=150)
numbers = st.one_of(
    st.integers(0, 10**18 - 1).map(t.Int),
    st.from_regex(r"[0-9]{1,4}\.[0-9]{1,4}([eE][-+]?[0-9]{1,2})?", fullmatch=True).map(t.Float),
)


def listed(strategy: st.SearchStrategy, least: int = 0, most: int = 3) -> st.SearchStrategy:
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


def _grown(inner: st.SearchStrategy) -> st.SearchStrategy:
    keywords = listed(st.builds(t.Keyword, idents, inner), most=1)
    binders = listed(st.builds(t.Binder, idents, st.none() | inner), least=1)
    return st.one_of(
        st.builds(t.Binary, st.sampled_from(BINARY), inner, inner),
        st.builds(t.Unary, st.sampled_from(("-", "not")), inner),
        st.builds(t.Ref, idents, listed(inner, least=1)),
        st.builds(t.Call, idents | words, listed(inner, least=1, most=4), keywords),
        st.builds(t.Call, st.just(t.Ident("where")), listed(inner, least=3)),
        st.builds(t.Reduce, words, binders, listed(inner, least=1), keywords),
        st.builds(t.SetLiteral, listed(inner, least=1, most=6)),
    )


exprs = st.recursive(st.one_of(numbers, st.builds(t.Ref, idents | words)), _grown, max_leaves=12)
targets = st.builds(t.Ref, idents, listed(st.builds(t.Ref, idents)))
keyword_args = listed(st.builds(t.Keyword, idents, exprs), most=2)
dtypes = st.one_of(st.builds(t.Dtype, idents, listed(exprs, most=2), keyword_args), st.builds(lambda letter: t.Dtype(t.Ident("set"), letter=letter), idents))
rankings = st.builds(t.Ranking, listed(exprs, least=1), st.none() | exprs)
bounds = st.one_of(st.builds(t.Bound, exprs, st.none() | exprs, st.just(True)), st.builds(lambda low: t.Bound(low, None, False), exprs))
weights = st.one_of(
    st.builds(t.Weight, idents, listed(idents, least=1), dtypes, texts, st.none()),
    st.builds(t.Weight, idents, listed(idents, least=1), dtypes, st.none(), exprs),
)
domains = st.one_of(
    st.builds(t.Domain, idents, idents, st.just("fixed"), st.none(), st.none(), exprs),
    st.builds(t.Domain, idents, idents, st.just("subset"), idents, st.none(), exprs),
    st.builds(t.Domain, idents, idents, st.just("groups"), idents, exprs, exprs),
)
zone_parts = listed(st.builds(t.Store, targets, dtypes, exprs) | st.builds(t.Decode, targets, exprs))
zones = st.one_of(
    st.builds(t.Zone, idents, st.none() | idents, zone_parts, st.just(True)),
    st.builds(t.Zone, idents, st.none() | idents, st.just(()), st.just(False)),
)
simple_statements = st.one_of(
    st.builds(t.Let, targets, exprs),
    st.builds(t.Assign, targets, st.sampled_from(("=", "+=")), exprs),
    st.builds(t.Evict, rankings),
    st.builds(t.Attend, rankings, st.booleans()),
    st.builds(t.Move, st.none() | idents, exprs, idents),
    st.builds(t.Blend, st.builds(t.Binder, idents, st.none() | exprs), exprs, exprs, exprs),
)
statements = st.recursive(simple_statements, lambda inner: st.builds(t.Branch, exprs, listed(inner), listed(inner)), max_leaves=4)
items = st.one_of(
    st.builds(t.Cite, texts),
    st.builds(t.Param, idents, idents, st.none() | bounds, exprs, st.none() | texts),
    domains,
    weights,
    st.builds(t.Layers, idents, exprs),
    zones,
    st.builds(t.State, targets, dtypes, exprs, st.booleans()),
    st.builds(t.Summary, targets, dtypes, exprs),
    st.builds(t.Ensure, texts, exprs),
    st.builds(t.Invariant, idents),
    st.builds(t.Schedule, listed(st.builds(t.Entry, idents, exprs))),
    st.builds(t.Hook, listed(idents, least=1), st.none() | exprs, st.none() | exprs, listed(statements)),
)
spec_files = st.builds(lambda method: t.SparseFile(1, method), st.builds(t.Method, idents, st.none() | texts, listed(items, most=5)))
