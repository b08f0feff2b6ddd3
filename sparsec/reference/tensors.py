"""The tensors that a method reads: K, V, Q, scores, ranks, pages, summaries and computed weights of one moment."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sparsec.dsl import tree as t
from sparsec.reference.moment import Moment, QueryBlock
from sparsec.reference.program import Unsupported
from sparsec.reference.rows import row_set
from sparsec.reference.values import Term, Value, full, ordered

Evaluate = Callable[[t.Expr, Moment], Term]
_MODEL_SIZES = {"h": "kv_heads", "g": "group", "c": "head_dim", "d": "head_dim", "l": "n_layers", "x": "kv_width"}


def per_head(counts: Tensor) -> Term:
    """[kv_head] counts: one number where all heads agree."""
    return int(counts[0]) if bool((counts == counts[0]).all()) else Value(counts, ("h",))


def block(at: Moment, node: t.Node) -> QueryBlock:
    if at.block is None:
        raise Unsupported(f"queries in {at.hook}; write `i in last(n)`", node)
    return at.block


def page_size(at: Moment, node: t.Node) -> int:
    if "page_size" in at.program.params:
        return at.program.params["page_size"]
    for schedule in at.program.method.of(t.Schedule):
        for entry in schedule.entries:
            if entry.name.text == "page_size" and isinstance(entry.value, t.Int):
                return entry.value.value
    raise Unsupported("pages without a page size", node)


def page_count(at: Moment, node: t.Node) -> int:
    return math.ceil(int(at.rows.resident.sum(1).max()) / page_size(at, node))


def pages_of_tokens(at: Moment, node: t.Node, token: str = "t", page: str = "p") -> Value:
    """Which rows lie in which page: page = rank // page size. Letters (h), token, page."""
    if len(at.program.zones) > 1:
        raise Unsupported("pages of a method with several zones", node)
    size = page_size(at, node)
    place = torch.div(at.rows.rank(), size, rounding_mode="floor")
    mask = (place[..., None] == torch.arange(page_count(at, node))) & at.rows.resident[..., None]
    inside = row_set(mask, ("h", "t", "p"))
    return Value(inside.data, inside.letters).renamed({"t": token, "p": page})


def size(letter: str, at: Moment, evaluate: Evaluate) -> int:
    """How many index values a letter has at this moment."""
    if letter in _MODEL_SIZES:
        return at.program.facts[_MODEL_SIZES[letter]]
    if letter in ("t", "s"):
        return at.rows.tokens
    if letter == "i":
        return block(at, t.Node()).positions.shape[0]
    if letter == "p":
        return page_count(at, t.Node())
    domain = at.program.domains.get(letter)
    if domain is None or domain.kind != "fixed":
        raise Unsupported(f"the index letter `{letter}`", domain or t.Node())
    return int(evaluate(domain.upto, at))


def sizes(letters: tuple[str, ...], at: Moment, evaluate: Evaluate) -> dict[str, int]:
    return {letter: size(letter, at, evaluate) for letter in letters}


def read(name: str, at: Moment, node: t.Node) -> Value:
    """A builtin tensor over its own letters."""
    where = at.where(node)
    if name in ("K", "V"):
        return Value(at.storage.read(name, at.layer), ("t", "h", "c"))
    if name == "K_raw":
        return Value(at.storage.keys_before_rope(at.layer, where), ("t", "h", "c"))
    if name == "pos":
        return Value(torch.arange(at.rows.tokens), ("t",))
    queries = block(at, node)
    key = (name, id(queries), at.judging)
    if key not in at.cache:
        at.cache[key] = {"Q": _queries, "logits": _logits, "probs": _probs}[name](queries, at, where)
    return at.cache[key]


def _queries(queries: QueryBlock, at: Moment, where: str) -> Value:
    return Value(at.storage.queries(at.layer, queries.positions, where), ("i", "h", "g", "c"))


def _logits(queries: QueryBlock, at: Moment, where: str) -> Value:
    """Scaled dot products with the rows attended, -inf for the others; an `ensure` is shown all rows that a query may see."""
    scores = _scores(queries, at, where)
    return scores if at.judging else _attended(scores, queries)


def _scores(queries: QueryBlock, at: Moment, where: str) -> Value:
    """Scaled dot products with every row that a query may see; -inf for the others."""
    q = at.storage.queries(at.layer, queries.positions, where)
    k = at.storage.read("K", at.layer)
    dots = torch.einsum("ihgc,thc->ihgt", q, k) * at.program.facts["scale"]
    seen = at.rows.visible(queries.positions)[:, :, None, :]
    return Value(dots.masked_fill(~seen, -torch.inf), ("i", "h", "g", "t"))


def _probs(queries: QueryBlock, at: Moment, where: str) -> Value:
    """Softmax over the rows attended, 0 elsewhere; a window's queries attend every resident row at or before them."""
    logits = _attended(_scores(queries, at, where), queries)
    return Value(torch.nan_to_num(logits.data.softmax(-1)), logits.letters)


def _attended(scores: Value, queries: QueryBlock) -> Value:
    """-inf where attention did not look; a window's queries look at every row that they see."""
    if queries.attended is None:
        return scores
    return Value(scores.data.masked_fill(~queries.attended.over(scores.letters), -torch.inf), scores.letters)


def order(letter: str, at: Moment, node: t.Node) -> Value:
    """Rank of a row, or of a query's own row, among the rows that its layer and head hold."""
    rank = at.rows.rank()
    if letter == "i":
        return Value(rank[:, block(at, node).positions], ("h", "i"))
    return Value(rank, ("h", letter))


def rope(expr: t.Call, at: Moment, evaluate: Evaluate) -> Value:
    """`rope(K_raw[t, h, c], positions)`. At `pos` it is K as the model wrote it."""
    source, where = expr.args[0], at.where(expr)
    if isinstance(source, t.Ref) and source.name.text == "K_raw" and counts_logically(expr, at, evaluate):
        return Value(at.storage.read("raw K", at.layer), ("t", "h", "c"))
    positions = evaluate(expr.args[1], at)
    x = evaluate(source, at)
    if not isinstance(positions, Value) or not isinstance(x, Value):
        raise Unsupported("rope of a number", expr)
    return at.storage.rotate(x, positions, where)


def counts_logically(expr: t.Call, at: Moment, evaluate: Evaluate) -> bool:
    """Whether a `rope` call rotates at `pos`: looks through static `where`s."""
    position = expr.args[1]
    while isinstance(position, t.Call) and position.name.text == "where":
        position = position.args[1 if evaluate(position.args[0], at) is True else 2]
    return isinstance(position, t.Ref) and position.name.text == "pos"


def summary(name: str, at: Moment, evaluate: Evaluate) -> Value:
    """A summary of the rows now present, in its declared dtype."""
    item = at.program.summaries[name]
    value = evaluate(item.value, at)
    if not isinstance(value, Value):
        raise Unsupported("a summary that is a plain number", item)
    return value


def weight(name: str, at: Moment, evaluate: Evaluate) -> Value:
    """A computed weight; weights of a side file do not exist in a replay."""
    item = at.program.weights[name]
    if not (isinstance(item.value, t.Call) and item.value.name.text == "gaussian"):
        raise Unsupported("a weight that is not computed by gaussian(seed = n)", item)
    letters = tuple(letter.text for letter in item.letters)
    shape = [size(letter, at, evaluate) for letter in letters]
    seed = int(evaluate(item.value.keywords[0].value, at))
    return Value(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), letters)


def laid_out(term: Term, letters: tuple[str, ...], at: Moment, evaluate: Evaluate) -> Value:
    """A term expanded over exactly these letters, in canonical order."""
    order_ = ordered(set(letters))
    extent = sizes(order_, at, evaluate)
    support = term.support_over(order_) if isinstance(term, Value) else None
    if support is not None:
        support = support.expand([extent[letter] for letter in order_])
    return Value(full(term, order_, extent), order_, support)
