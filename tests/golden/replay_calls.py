"""Turns the metadata of a golden case into a replay: `replay_call(meta) -> Call | Skip`.

The words of a case's `params` are those of the method's card; each function below maps them to the params of `methods/NAME.sparse`. Nothing here
looks at tensors, so further cases of the same kinds go through it unchanged. `Call.compare` maps each expected tensor to what a trace
has for it: expected = factor * recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Compare = dict[str, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of `sparsec.replay` beside the case's own tensors, prompt_len and q_start. rotated=False means q_pre and k_pre."""

    spec: str
    params: dict[str, object]
    chunk: int | None = None
    rotated: bool = True
    rope: dict[str, object] | None = None
    dtype: torch.dtype | None = None
    record: tuple[str, ...] = ()
    compare: Compare = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skip:
    """The case follows a rule that we do not offer."""

    reason: str


def replay_call(meta: dict) -> Call | Skip:
    """The replay that reproduces a case, from the case's metadata alone."""
    build = _METHODS.get(meta["method"])
    if build is None:
        return Skip(f"{meta['method']} is a method of a later issue")
    return build(meta, meta.get("params", {}))


# ---- eviction --------------------------------------------------------------------------------


def _dense(meta: dict, params: dict) -> Call | Skip:
    return _evicting(meta, {}, None)


def _streamingllm(meta: dict, params: dict) -> Call | Skip:
    """Mode A and B re-count positions (B re-rotates stored keys: the same attention), mode C keeps the logical ones."""
    if "sinkcache" in _words(meta):
        return Skip("SinkCache inserts the newest key at its unshifted position (card, section 7)")
    sinks = params.get("start_size", params.get("n_sink", 4))
    budget = sinks + params["recent_size"] if "recent_size" in params else _kept_by_ratio(meta, params)
    mode_c = params.get("position_reindex") is False or "mode_c" in _words(meta)
    chosen = {
        "budget": budget,
        "sinks": sinks,
        "interval": params.get("eviction_interval", 1),
        "evict_in_prefill": params.get("trim_per_chunk", params.get("evict_after_each_chunk", False)),
        "evict_in_decode": params.get("decode_eviction", True),
        "positions": "original" if mode_c else "cache",
    }
    return _evicting(meta, chosen, None, unrotated=not mode_c)


def _h2o(meta: dict, params: dict) -> Call | Skip:
    if params.get("score_window"):
        return Skip("score_window is another engine's shortcut: our scores count every query of a chunk (card, section 4)")
    heavy = params.get("heavy", int(params.get("heavy_ratio", 0) * meta["prompt_len"]))
    recent = params.get("recent", int(params.get("recent_ratio", 0) * meta["prompt_len"]))
    if recent < 1:
        return Skip("recent = 0 makes the reference's mask a no-op (card, section 6)")
    reduce = _reduction(meta, params)
    if reduce is None:
        return _per_query_head()
    reindex = bool(params.get("position_reindex", False))
    chosen = {
        "budget": heavy + recent,
        "recent": recent,
        "interval": params.get("eviction_interval", 1),
        "evict_in_prefill": params.get("evict_after_each_chunk", False),
        "evict_in_decode": params.get("decode_eviction", True),
        "reduce": reduce,
        "heads": "joint" if params.get("shared_set") else "each",
        "positions": "cache" if reindex else "original",
    }
    return _evicting(meta, chosen, ("score", 1.0), unrotated=reindex)


def _tova(meta: dict, params: dict) -> Call | Skip:
    chosen = {
        "budget": params["cache_size"] if "cache_size" in params else _kept_by_ratio(meta, params),
        "protect": params.get("protect_last", 0),
        "interval": params.get("eviction_interval", 1),
        "evict_in_prefill": params.get("evict_after_each_chunk", False),
        "evict_in_decode": params.get("decode_eviction", True),
    }
    sentinel = "max+1" in meta.get("score", {}).get("meaning", "")  # kvpress overwrites the last token's score
    return _evicting(meta, chosen, None if sentinel else ("care", 1.0))


def _window_votes(meta: dict, params: dict) -> dict[str, object] | Skip:
    """What SnapKV and its descendants share."""
    reduce = _reduction(meta, params)
    if reduce is None:
        return _per_query_head()
    window = params["window_size"]
    capacity = params.get("max_capacity_prompt", params.get("base_capacity"))
    budget = capacity if capacity is not None else _kept_by_ratio(meta, params)
    if window > budget:
        return Skip("the window does not fit the budget (card: C > W)")
    return {
        "budget": budget,
        "window": window,
        "kernel": params.get("kernel_size", 1),
        "pooling": params.get("pooling", "maxpool"),
        "reduce": reduce,
    }


def _snapkv(meta: dict, params: dict) -> Call | Skip:
    chosen = _window_votes(meta, params)
    if isinstance(chosen, Skip):
        return chosen
    heads = "joint" if params.get("shared_set") else "each"
    return _evicting(meta, {**chosen, "heads": heads}, ("smooth", _window_factor(meta, params, summed=True)))


def _pyramidkv(meta: dict, params: dict) -> Call | Skip:
    if "kvpress" in _words(meta):
        return Skip("kvpress falls back to a uniform budget silently (card, sections 6 and 7)")
    chosen = _window_votes(meta, params)
    if isinstance(chosen, Skip):
        return chosen
    exact = params.get("rounding", "floor_step") in ("exact", "largest_remainder")
    if "ffy0" in _words(meta) and meta["prompt_len"] < 2 * (chosen["budget"] - chosen["window"]):
        return Skip("FFY0's pyramid has no guard for prompts below twice the budget, and freezes capacities (card, section 6)")
    chosen |= {"beta": params.get("beta", 20), "rounding": "exact" if exact else "floor_step"}
    return _evicting(meta, chosen, ("smooth", _window_factor(meta, params, summed=True)))


def _ada_snapkv(meta: dict, params: dict) -> Call | Skip:
    chosen = _window_votes(meta, params)
    if isinstance(chosen, Skip):
        return chosen
    chosen |= {
        "alpha": params.get("alpha", params.get("floor_alpha", 0.2)),
        "split": "ranking" if "kvpress" in _words(meta) or "safeguard" in _words(meta) else "shares",
        "uniform_layers": params.get("skip", 0),
        "normalize": params.get("normalize", False),
        "rounding": "half_even" if params.get("rounding", meta.get("rounding", "")).startswith("half_even") else "exact",
    }
    return _evicting(meta, chosen, ("smooth", _window_factor(meta, params, summed=False)))


def _evicting(meta: dict, params: dict[str, object], score: tuple[str, float] | None, unrotated: bool = False) -> Call:
    """The tensors that eviction cases have in common."""
    compare: Compare = {}
    for name in meta["tensors"]:
        stem = name.split(".")[0]
        if stem.startswith("kept_"):
            compare[name] = ("kept", 1.0)
        elif stem.startswith("visible_"):
            compare[name] = ("attended", 1.0)
        elif stem == "out" or stem.startswith("prompt_out"):
            compare[name] = ("output", 1.0)
        elif score is not None and (stem == "score" or stem.startswith("score_step")):
            compare[name] = score
    if score is not None and score[0] == "smooth" and meta["prompt_len"] <= params["budget"]:
        compare = {name: what for name, what in compare.items() if what != score}  # nothing is ranked below the budget
    record = tuple(sorted({what for what, _ in compare.values()} - {"kept", "attended", "output"}))
    rope = _rope(meta) if unrotated else None
    return Call(meta["method"], params, meta.get("chunk"), not unrotated, rope, _dtype(meta), record, compare)


# ---- selection and codecs ----------------------------------------------------------------------


def _quest(meta: dict, params: dict) -> Call | Skip:
    budget, size = params["token_budget"], params["page_size"]
    if params.get("budget_clipped_to_context") and budget >= meta["prompt_len"] + 1:
        return Skip("a context below the budget is pruned all the same: Quest issue 22 (card, section 7)")
    if "sglang" in _words(meta) or "mean_query" in _words(meta):
        return Skip("the bound of a mean query is no bound for single heads (card, section 6)")
    forced = params.get("last_page_forced", True)
    expected_pages = meta["tensors"].get("expected_sel_pages", {}).get("shape", (0, 0, meta["kv_heads"], 0))
    per_query = "query_head" in _words(meta) or (expected_pages[2:3] == [meta["q_heads"]] != [meta["kv_heads"]])
    joint = "shared" in _words(meta) or "sparse_vllm" in _words(meta) or len(expected_pages) == 3
    chosen = {
        "page_size": size,
        "budget": budget,
        "min_pages": max(1, params.get("min_pages", 1), params.get("page_budget", 1)),
        "dense": params.get("skip_layers", 0),
        "heads": "joint" if joint else "query_head" if per_query else "kv_head",
        "sink_pages": params.get("sink_pages", 0),
        "recent_pages": max(1, params.get("recent_pages", 1)),
        "open": "forced" if forced else "ranked",
    }
    names = {
        "expected_page_scores": "reach",
        "expected_page_max": "kmax",
        "expected_page_min": "kmin",
        "expected_sel_pages": "attended",
        "expected_out": "output",
    }
    return _expecting(meta, chosen, names)


def _omnikv(meta: dict, params: dict) -> Call | Skip:
    selector = params.get("selector", "softmax")
    if selector.startswith(("uniform", "exp")):
        return Skip(f"the selector {selector!r} scores with a window of past queries; the card recommends the newest")
    count, window = params["num_of_selected_tokens"], params.get("recent", 1)
    whole_tail = "original" in _words(meta) or "prompt" in str(params.get("candidates", "")) or not isinstance(window, int)
    softmax = selector.startswith("softmax")
    filters, waits = _dense_layers(meta, params)
    chosen = {
        "filters": filters,
        "waits": waits,
        "budget": int(count * meta["prompt_len"]) if isinstance(count, float) else count,
        "sinks": params.get("sink", 0),
        "window": max(1, window) if isinstance(window, int) else 1,
        "candidates": "prompt" if whole_tail else "history",
        "selector": "softmax" if softmax else "logit",
    }
    names = {"expected_scores": "drawn", "expected_sel_tokens": "attended", "expected_out": "output"}
    unscaled = not softmax and "unscaled" in meta.get("expected", {}).get("scores", "")
    return _expecting(meta, chosen, names, {"drawn": meta["head_dim"] ** 0.5} if unscaled else {})


def _dense_layers(meta: dict, params: dict) -> tuple[frozenset[int], frozenset[int]]:
    """Filter layers and further dense ones. The last layer of each run of dense layers chooses, unless the case says otherwise."""
    dense = frozenset(params.get("full_attn_layers") or params["filter_layers"])
    given = frozenset(params.get("filter_layers") or dense)
    wait = params.get("num_wait_load_layers", 0)
    dense |= {layer + n for layer in given for n in range(wait + 1) if layer + n < meta["layers"]}
    choosing = {layer for layer in dense if layer + 1 not in dense}
    return (dense, dense) if choosing <= given <= dense and not wait else (given, dense)


def _kivi(meta: dict, params: dict) -> Call | Skip:
    if "transformers" in _words(meta):
        return Skip("per-token keys are an ablation (card, section 6)")
    blocks = "sparse_vllm" in _words(meta) or params.get("flush") == "blocks"
    chosen = {
        "k_bits": params["k_bits"],
        "v_bits": params["v_bits"],
        "block": params["group_size"],
        "residual": params["residual_length"],
        "flush": "blocks" if blocks else "reference",
    }
    names = {
        "expected_k_codes": "kq",
        "expected_k_scale": "kq.scale",
        "expected_k_min": "kq.min",
        "expected_v_codes": "vq",
        "expected_v_scale": "vq.scale",
        "expected_v_min": "vq.min",
        "expected_schedule": "packed.rows",
        "expected_out": "output",
    }
    return _expecting(meta, chosen, names)


def _expecting(meta: dict, params: dict[str, object], names: dict[str, str], factors: dict[str, float] | None = None) -> Call:
    compare = {name: (what, (factors or {}).get(what, 1.0)) for name, what in names.items() if name in meta["tensors"]}
    record = tuple(sorted({what for what, _ in compare.values()} - {"attended", "output"}))
    return Call(meta["method"], params, meta.get("chunk"), dtype=_dtype(meta), record=record, compare=compare)


# ---- words of the metadata -----------------------------------------------------------------------


def _words(meta: dict) -> str:
    return meta.get("variant", "").lower()


def _dtype(meta: dict) -> torch.dtype | None:
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(meta.get("dtype", "float32"))


def _rope(meta: dict) -> dict[str, object]:
    given = meta.get("rope", {})
    rope: dict[str, object] = {"theta": given.get("theta", 10000.0), "style": given.get("style", "half-split")}
    return rope | ({"dim": given["dim"]} if "dim" in given else {})


def _reduction(meta: dict, params: dict) -> str | None:
    """mean, sum or max over a group; None where every query head of a group keeps its own rows."""
    word = params.get("gqa_reduce", params.get("gqa_func", "mean"))
    if word in ("mean", "sum", "max"):
        return word
    return "mean" if meta["q_heads"] == meta["kv_heads"] else None


def _per_query_head() -> Skip:
    return Skip("KV repeated to the query heads before caching keeps one set per query head and G times the memory (cards, section 6)")


def _kept_by_ratio(meta: dict, params: dict) -> int:
    """kvpress: the ratio is the removed share of the prompt."""
    return int(meta["prompt_len"] * (1 - params["compression_ratio"]))


def _window_factor(meta: dict, params: dict, summed: bool) -> float:
    """Our votes are the window's sum (SnapKV, PyramidKV) or mean (Ada-KV); the expected score says which it is."""
    meaning = meta.get("score", {}).get("meaning", "")
    expects_mean = "mean over the window" in meaning or (not meaning.count("sum over the window") and not summed)
    if expects_mean == (not summed):
        return 1.0
    return 1 / params["window_size"] if expects_mean else float(params["window_size"])


_METHODS: dict[str, Callable[[dict, dict], Call | Skip]] = {
    "dense": _dense,
    "streamingllm": _streamingllm,
    "h2o": _h2o,
    "snapkv": _snapkv,
    "pyramidkv": _pyramidkv,
    "ada_snapkv": _ada_snapkv,
    "tova": _tova,
    "quest": _quest,
    "omnikv": _omnikv,
    "kivi": _kivi,
}
