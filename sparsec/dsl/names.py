"""The vocabulary of the language: one table that feeds the checker, the docs and the editors.

Values (tensors, facts, sets, words) and callables (functions, set builders, reductions) are separate namespaces, so a
param may be called `recent` beside the builder `recent(n)`. Everything here is data; no rule is applied.
"""

from __future__ import annotations

from dataclasses import dataclass

# ---- index letters ---------------------------------------------------------------------------

LETTERS: dict[str, str] = {
    "i": "query",
    "t": "token",
    "s": "token",
    "p": "page",
    "h": "kv_head",
    "g": "group",
    "c": "channel",
    "d": "channel",
    "l": "layer",
    "x": "kv_width",
    "y": "hidden_width",
}
STATIC_DOMAINS = frozenset({"kv_head", "group", "channel", "layer", "kv_width", "hidden_width"})  # sized by the model
HEAD_DOMAINS = frozenset({"kv_head", "group"})  # domains of granularity, which a value may lack in one branch

# ---- tensors and facts -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """source: "rows" (readable in every hook), "step" (of the step's queries), "scores" (of the attention just done)."""

    name: str
    letters: tuple[str, ...]
    source: str
    doc: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """model: from the model's config, the same for all requests. Other facts are of the sequence or of the step."""

    name: str
    kind: str
    unit: str | None
    static: bool
    model: bool
    doc: str


TENSORS: dict[str, Tensor] = {
    entry.name: entry
    for entry in (
        Tensor("Q", ("i", "h", "g", "c"), "step", "rotated queries of the step, or of `i in last(n)`"),
        Tensor("K", ("t", "h", "c"), "rows", "keys as attention reads them, rotated"),
        Tensor("V", ("t", "h", "c"), "rows", "values"),
        Tensor("K_raw", ("t", "h", "c"), "rows", "keys before RoPE"),
        Tensor("KV_raw", ("t", "x"), "rows", "keys before RoPE and values of all heads, side by side"),
        Tensor("probs", ("i", "h", "g", "t"), "scores", "softmax over the rows attended, 0 elsewhere"),
        Tensor("logits", ("i", "h", "g", "t"), "scores", "scaled dot products before the softmax"),
        Tensor("hidden", ("t", "y"), "step", "input of the attention block for the step's new rows"),
        Tensor("pos", ("t",), "rows", "logical position of a row", "tokens"),
    )
}

FACTS: dict[str, Fact] = {
    entry.name: entry
    for entry in (
        Fact("n_layers", "number", "int", True, True, "layers of the model"),
        Fact("kv_heads", "number", "int", True, True, "KV heads of a layer"),
        Fact("group", "number", "int", True, True, "query heads of one KV head"),
        Fact("head_dim", "number", "int", True, True, "channels of a head"),
        Fact("kv_width", "number", "int", True, True, "width of KV_raw"),
        Fact("hidden_width", "number", "int", True, True, "width of the residual stream"),
        Fact("scale", "number", None, True, True, "factor of the logits, usually head_dim ** -0.5"),
        Fact("layer", "number", "int", True, False, "the current layer, from 0"),
        Fact("len", "number", "tokens", False, False, "resident rows of the current layer and head, new rows included"),
        Fact("prompt_rows", "number", "tokens", False, False, "`len` right after end_of_prompt"),
        Fact("steps", "number", "int", False, False, "decode steps done"),
        Fact("chunk", "number", "tokens", False, False, "configured prefill chunk"),
        Fact("clusters", "number", "int", False, False, "groups now present of a declared group domain"),
        Fact("prefilling", "bool", None, False, False, "true in every step that holds prompt tokens"),
        Fact("decoding", "bool", None, False, False, "not prefilling"),
        Fact("prompt_done", "bool", None, False, False, "true from the step whose chunk ends the prompt on"),
    )
}

CONSTANTS: dict[str, bool] = {"true": True, "false": False}
COMPONENTS = ("K", "V")

# ---- sets ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedSet:
    """base: letters of the members, () where any base fits."""

    name: str
    base: tuple[str, ...]
    doc: str


SETS: dict[str, NamedSet] = {
    entry.name: entry
    for entry in (
        NamedSet("all", (), "every member of the domain asked for"),
        NamedSet("none", (), "the empty set"),
        NamedSet("open_page", ("t",), "rows of the page that holds the query's own row, full or not"),
        NamedSet("kept", ("t",), "in `ensure`: the rows resident after finish_step"),
        NamedSet("attended", ("t",), "in `ensure`: the rows that attention read"),
    )
}
ENSURE_ONLY = frozenset({"kept", "attended"})


@dataclass(frozen=True, slots=True)
class Function:
    """A call. args: what each argument is, "?" at the end marks an optional one, "*" any number of one kind.

    Argument kinds: number, count (whole, tokens), rows (letter or value counting rows), bool, set, layers, zone,
    component, letter (a bare index), word (a bare name), any.
    result: "number", "bool", "set" or "branch" (the kind of the branches).
    """

    name: str
    args: tuple[str, ...]
    result: str
    doc: str
    keywords: tuple[str, ...] = ()
    base: tuple[str, ...] = ()

    @property
    def least(self) -> int:
        return sum(1 for arg in self.args if not arg.endswith(("?", "*")))

    @property
    def most(self) -> int | None:
        return None if any(arg.endswith("*") for arg in self.args) else len(self.args)


FUNCTIONS: dict[str, Function] = {
    entry.name: entry
    for entry in (
        Function("sink", ("count",), "set", "the first n resident rows", base=("t",)),
        Function("recent", ("count",), "set", "the newest n resident rows", base=("t",)),
        Function("oldest", ("count", "zone?"), "set", "the oldest n rows, of a zone if one is given", base=("t",)),
        Function("every", ("count",), "set", "every n-th row, from the first", base=("t",)),
        Function("before", ("letter",), "set", "rows at or before t", base=("t",)),
        Function("itself", ("letter",), "set", "the row t alone", base=("t",)),
        Function("last", ("count",), "set", "the newest n queries", base=("i",)),
        Function("rows", ("zone", "component?"), "number", "rows whose K (or V) is in a zone"),
        Function("where", ("bool", "any", "any"), "branch", "the second where the first holds, else the third"),
        Function("min", ("number*",), "number", "the smallest argument, or the smallest layer of a layer set"),
        Function("max", ("number*",), "number", "the largest argument, or the largest layer of a layer set"),
        Function("floor", ("number",), "number", "rounds down"),
        Function("ceil", ("number",), "number", "rounds up"),
        Function("round", ("number",), "number", "rounds half to even"),
        Function("abs", ("number",), "number", "absolute value"),
        Function("exp", ("number",), "number", "e to the power"),
        Function("log", ("number",), "number", "natural logarithm"),
        Function("sqrt", ("number",), "number", "square root"),
        Function("relu", ("number",), "number", "max(x, 0)"),
        Function("sigmoid", ("number",), "number", "1 / (1 + exp(-x))"),
        Function("clip", ("number", "number", "number?"), "number", "x limited from below, and from above if given"),
        Function("pages", ("number",), "number", "tokens to whole pages, rounded down"),
        Function("pages_for", ("number",), "number", "tokens to whole pages, rounded up"),
        Function("tokens", ("number",), "number", "pages to tokens"),
        Function("order", ("letter",), "number", "rank of a row among the rows held"),
        Function("rope", ("number", "number"), "number", "rotates keys to a position"),
        Function("levels", ("number",), "number", "2 ** bits"),
        Function("model_fact", ("word",), "number", "a number of the model's config"),
        Function("gaussian", (), "number", "normal numbers that depend on the seed alone", ("seed",)),
        Function("gumbel", (), "number", "Gumbel noise that depends on seed and index alone", ("seed", "index")),
        Function("error", ("word",), "number", "in `ensure`: largest difference from the exact tensor"),
    )
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """keeps: the binder stays free in the result. result: number, bool, set, count, or "arg" (a position).

    args: least and most number of arguments; `ordered`: the binder's domain must have neighbours (token, page).
    """

    name: str
    result: str
    doc: str
    args: tuple[int, int] = (1, 1)
    keeps: bool = False
    keywords: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    ordered: bool = False


REDUCTIONS: dict[str, Reduction] = {
    entry.name: entry
    for entry in (
        Reduction("sum", "number", "adds"),
        Reduction("mean", "number", "average"),
        Reduction("max", "number", "largest"),
        Reduction("min", "number", "smallest"),
        Reduction("norm", "number", "Euclidean length"),
        Reduction("cosine", "number", "cosine of two vectors", (2, 2)),
        Reduction("any", "bool", "true for one at least"),
        Reduction("every", "bool", "true for all"),
        Reduction("count", "count", "members"),
        Reduction("argmax", "arg", "index of the largest"),
        Reduction("argmin", "arg", "index of the smallest"),
        Reduction("softmax", "number", "exponentials that sum to 1 over the binder", keeps=True),
        Reduction("cumsum", "number", "running sum", keeps=True, ordered=True),
        Reduction("avgpool", "number", "sliding average", (1, 1), True, ("width",), ("width",), True),
        Reduction("maxpool", "number", "sliding maximum", (1, 1), True, ("width",), ("width",), True),
        Reduction("apportion", "count", "whole shares of a total by largest remainder", (2, 2), True),
        Reduction("top", "set", "the n best", (1, 2)),
        Reduction("bottom", "set", "the n worst", (1, 2)),
        Reduction("nucleus", "set", "the best until they hold a share of the mass", (2, 2)),
        Reduction("filter", "set", "those for which a condition holds"),
        Reduction("kmeans", "number", "cluster of a vector", (1, 1), False, ("segment", "size", "rounds")),
        Reduction("svd", "number", "right singular vectors", (1, 1), False, ("onto",), ("onto",)),
        Reduction("apply", "number", "matrix times vector", (2, 2)),
    )
}
RANKINGS = frozenset({"top", "bottom", "nucleus"})

# ---- hooks -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hook:
    """phases: prefill, decode. per: "layer" or "step". reads: tensors beyond those of source "rows";
    window: tensors readable only as `i in last(n)`. may: statements allowed, of state, shared, move, evict, attend."""

    name: str
    phases: tuple[str, ...]
    per: str
    reads: frozenset[str]
    window: frozenset[str]
    may: frozenset[str]
    doc: str


_STEP = frozenset({"Q", "hidden"})
_SCORES = _STEP | {"probs", "logits"}
_WINDOW = frozenset({"Q", "probs", "logits"})
_NOTHING: frozenset[str] = frozenset()
_STATE = frozenset({"state"})
_SELECT = frozenset({"attend", "blend", "move"})
_SETTLE = frozenset({"state", "move", "evict"})
_BOTH = ("prefill", "decode")

HOOKS: dict[str, Hook] = {
    entry.name: entry
    for entry in (
        Hook("kv_write", _BOTH, "layer", _STEP, _NOTHING, _STATE, "after K and V of the new rows are stored"),
        Hook("build_prefill_selection", ("prefill",), "layer", _STEP, _NOTHING, _SELECT, "before prefill attention"),
        Hook("build_decode_selection", ("decode",), "layer", _STEP, _NOTHING, _SELECT, "before decode attention"),
        Hook("before_prefill_attention", ("prefill",), "layer", _STEP, _NOTHING, _STATE, "before prefill attention"),
        Hook("before_decode_attention", ("decode",), "layer", _STEP, _NOTHING, _STATE, "before decode attention"),
        Hook("after_prefill_attention", ("prefill",), "layer", _SCORES, _NOTHING, _STATE, "after prefill attention"),
        Hook("after_decode_attention", ("decode",), "layer", _SCORES, _NOTHING, _STATE, "after decode attention"),
        Hook("layer_end", _BOTH, "layer", _STEP, _NOTHING, frozenset({"shared"}), "at the end of a layer"),
        Hook("end_of_prompt", ("prefill",), "step", _NOTHING, _WINDOW, _SETTLE, "once, when the prompt is complete"),
        Hook("finish_step", _BOTH, "step", _NOTHING, _WINDOW, _SETTLE, "after every engine step"),
        Hook("probe_attention", ("prefill",), "layer", frozenset({"probs"}), _NOTHING, _STATE, "extra read-only pass"),
    )
}

# ---- units, dtypes, words ----------------------------------------------------------------------

COUNT_UNITS = ("tokens", "pages", "bytes", "bits", "int")
UNITS: dict[str, str] = {
    "tokens": "a number of rows",
    "pages": "a number of pages",
    "bytes": "a number of bytes",
    "bits": "the width of a code",
    "int": "a plain whole number",
    "ratio": "a number, usually between 0 and 1",
    "layer_set": "a set of layers, such as {0, 2}",
    "bool": "true or false",
    "choice": "one of several names",
}


@dataclass(frozen=True, slots=True)
class DtypeInfo:
    """uses: where it may stand, of state, summary, store, weight. integral: values are whole numbers."""

    name: str
    uses: frozenset[str]
    doc: str
    args: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    integral: bool = False


_VALUES = frozenset({"state", "summary", "store", "weight"})
_STORE = frozenset({"store"})
DTYPES: dict[str, DtypeInfo] = {
    entry.name: entry
    for entry in (
        DtypeInfo("f32", _VALUES, "32-bit float"),
        DtypeInfo("f16", _VALUES, "16-bit float"),
        DtypeInfo("bf16", _VALUES, "bfloat16"),
        DtypeInfo("model", _VALUES, "the dtype of the model's K and V"),
        DtypeInfo("i32", _VALUES, "32-bit integer", integral=True),
        DtypeInfo("i64", _VALUES, "64-bit integer", integral=True),
        DtypeInfo("bool", frozenset({"state", "weight"}), "true or false"),
        DtypeInfo("set", frozenset({"state"}), "a set of index values"),
        DtypeInfo("bit", _STORE, "one bit", integral=True),
        DtypeInfo("int", _STORE, "group-quantised integer", ("count",), ("along", "block", "zero", "rotate")),
        DtypeInfo("fp8", frozenset({"state", "store"}), "8-bit float", (), ("along", "block")),
        DtypeInfo("code", _STORE, "index into a grid", ("word",), ("along", "outliers")),
        DtypeInfo("pruned", _STORE, "channels of a set only", ("any",)),
        DtypeInfo("index", _STORE, "positions of rows of a zone", ("zone",), integral=True),
        DtypeInfo("module", frozenset({"weight"}), "a small network of the side file"),
    )
}

KEYWORD_KINDS: dict[str, str] = {
    "width": "count", "along": "letter", "block": "count", "zero": "bool", "rotate": "word", "outliers": "number",
    "seed": "number", "index": "number", "segment": "count", "size": "count", "rounds": "count", "onto": "letter",
}  # fmt: skip
WORDS: dict[str, tuple[str, ...]] = {"rotate": ("hadamard",), "cache_policy": ("lru",)}

# Decimal digits to which `apportion` compares remainders: raw shares come out of float64 arithmetic, where 5 may read
# 4.999999999999999. The runtime has the same constant (ops.shares), and a test holds all of them together.
SHARE_DIGITS = 9

TIERS = ("gpu", "cpu")
INVARIANTS = ("chunks",)
SCHEDULE: dict[str, str] = {
    "page_size": "count",
    "cache_policy": "word",
    "gpu_cache": "number",
    "allow_quadratic": "bool",
}
