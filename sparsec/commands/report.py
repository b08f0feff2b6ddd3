"""What `sparsec run` says at the end: a short report for people, or one JSON object."""

from __future__ import annotations

import json

from sparsec.session import Result


def stats_object(result: Result, other: Result | None) -> str:
    """The object of `--stats json`; bytes are those of pages owned after the last commit."""
    stats = {
        "method": result.method,
        "model": result.model,
        "params": {name: _plain(value) for name, value in result.params.items()},
        "prompt_tokens": result.usage.prompt_tokens,
        "new_tokens": result.usage.new_tokens,
        "device": result.device,
        "decode_graphs": not result.eager_because,
        "eager_because": result.eager_because,
        "prefill_tokens_per_s": round(result.prefill_rate, 2),
        "decode_tokens_per_s": round(result.decode_rate, 2),
        "kv_bytes": result.usage.kv_bytes,
        "kv_bytes_peak": result.usage.kv_bytes_peak,
        "state_bytes": result.usage.state_bytes,
        "kv_bytes_dense": result.kv_bytes_dense,
        "tokens_evicted": result.usage.tokens_evicted,
        "text": result.text,
        "token_ids": list(result.token_ids),
    }
    if other is not None:
        stats[f"text_{other.method}"] = other.text
        stats[f"token_ids_{other.method}"] = list(other.token_ids)
    return json.dumps(stats, ensure_ascii=False)


def print_report(result: Result, other: Result | None) -> None:
    usage = result.usage
    share = usage.kv_bytes / result.kv_bytes_dense
    print(f"\n{result.method} on {result.model}, {_params(result.params)}")
    print(f"  prefill  {usage.prompt_tokens} tokens at {result.prefill_rate:,.0f} tokens/s")
    print(f"  decode   {usage.new_tokens} tokens at {result.decode_rate:,.1f} tokens/s")
    print(f"  device   {result.device}{_steps(result)}")
    print(f"  KV held  {_size(usage.kv_bytes)} of dense's {_size(result.kv_bytes_dense)} ({share:.2f}), peak {_size(usage.kv_bytes_peak)}")
    print(f"  state    {_size(usage.state_bytes)}")
    print(f"  evicted  {usage.tokens_evicted:,.0f} tokens per layer and head")
    print(f"  pages    {result.pages_free:,} of {result.pages_total:,} free")
    if other is not None:
        print(f"\n{other.method}: {other.text}")
        print(f"  {_agreement(result.token_ids, other.token_ids)}")


def _steps(result: Result) -> str:
    """On a CUDA device: what decode steps were."""
    if result.device != "cuda":
        return ""
    return ", decode in CUDA graphs" if not result.eager_because else f", decode in torch, because {result.eager_because}"


def _plain(value: object) -> object:
    """A set of layers as a sorted list; everything else as it is."""
    return sorted(value) if isinstance(value, frozenset) else value


def _params(params: dict[str, object]) -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in params.items()) or "no params"


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _agreement(mine: tuple[int, ...], theirs: tuple[int, ...]) -> str:
    same = next((n for n, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
    return "the same tokens" if same == len(mine) == len(theirs) else f"the same for {same} tokens"
