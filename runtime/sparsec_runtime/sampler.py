"""Sampling: logits of a batch to one token a row, each row by its own parameters. Knows no requests and no engine.

Order, as in vLLM: logit bias, penalties, (temperature 0: argmax, ties to the lower id), temperature, min-p, top-k, top-p, draw. Reported logprobs
are the log-softmax of the model's own logits, before any of these. A row's draw is one Philox4x32-10 number keyed by (seed, step) through the
inverse of its cumulative distribution in id order, so it depends on nothing else: not on batch mates, their order, or earlier draws. Weights are whole
numbers (draw.py): the kernels of a decode graph (gpu/kernels/sample.py) draw the same ids.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from .draw import first_beyond, fixed_weights, least_weight, scale_of, share_of
from .philox import uniform

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request samples and when it stops. Values out of range raise ValueError naming the field, the value and the legal range."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: drawn anew for each instance, see `row_seed`
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives reported beside the chosen token
    logit_bias: tuple[tuple[int, float], ...] = ()  # a mapping {id: bias} is taken too
    row_seed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._normalise()
        for name, (low, high) in _REALS.items():
            _require(name, getattr(self, name), low, high, whole=False)
        for name, (low, high) in _WHOLES.items():
            _require(name, getattr(self, name), low, high, whole=True)
        if self.top_p == 0:
            raise ValueError("top_p = 0 is out of range: above 0, at most 1")
        if self.repetition_penalty == 0:
            raise ValueError("repetition_penalty = 0 is out of range: above 0")
        if self.seed is not None:
            _require("seed", self.seed, -(2**63), 2**63 - 1, whole=True)
        if self.logprobs is not None:
            _require("logprobs", self.logprobs, 0, MAX_LOGPROBS, whole=True)
        self._check_stops()
        self._check_bias()

    def check_vocab(self, vocab: int) -> None:
        """Refuses token ids that the model does not have."""
        for name, ids in (("logit_bias", [token for token, _ in self.logit_bias]), ("stop_ids", self.stop_ids)):
            for token in ids:
                _require(f"{name} id", token, 0, vocab - 1, whole=True)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Nothing but the largest logit is asked for."""
        return self.greedy and not self.penalised and not self.logit_bias and self.logprobs is None

    @property
    def penalised(self) -> bool:
        """Whether past tokens change the logits."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    def _normalise(self) -> None:
        bias = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "logit_bias", tuple((token, value) for token, value in bias))
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_ids", tuple(self.stop_ids))
        object.__setattr__(self, "row_seed", secrets.randbits(63) if self.seed is None else self.seed)

    def _check_stops(self) -> None:
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop = {text!r} is not a stop string: text of at least one character")
        for token in self.stop_ids:
            _require("stop_ids id", token, 0, 2**31 - 1, whole=True)

    def _check_bias(self) -> None:
        for token, value in self.logit_bias:
            _require("logit_bias id", token, 0, 2**31 - 1, whole=True)
            _require(f"logit_bias[{token}]", value, -100, 100, whole=False)


_REALS: dict[str, tuple[float, float]] = {
    "temperature": (0, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0, math.inf),
}
_WHOLES: dict[str, tuple[float, float]] = {"top_k": (0, math.inf), "max_tokens": (1, math.inf)}


def _require(name: str, value: object, low: float, high: float, whole: bool) -> None:
    kinds = int if whole else (int, float)
    if isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high:
        return
    kind = "a whole number, " if whole else ""
    upper = "" if math.isinf(high) else f", at most {high}"
    raise ValueError(f"{name} = {value!r} is out of range: {kind}at least {low}{upper}")


@dataclass(frozen=True, slots=True, eq=False)
class TokenCounts:
    """What each row has seen, on the device, so that counting needs no transfer: `prompt` [row, vocab] bool, `generated` [row, vocab] int32."""

    prompt: Tensor
    generated: Tensor

    @classmethod
    def of(cls, history: Sequence[tuple[Sequence[int], Sequence[int]]], vocab: int, device: torch.device) -> Self:
        """Counts of per-row (prompt ids, generated ids)."""
        prompt = torch.stack([_bincount(ids, vocab) for ids, _ in history]) > 0
        generated = torch.stack([_bincount(ids, vocab) for _, ids in history])
        return cls(prompt.to(device), generated.to(device, torch.int32))

    def count(self, ids: Tensor) -> None:
        """Adds one generated token to each row, in place; ids [row]."""
        self.generated.scatter_add_(1, ids[:, None], torch.ones_like(ids[:, None], dtype=torch.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Logprobs:
    """Log-softmax of the unmodified logits: of the chosen token and of the k best, k the most that any row asked for."""

    chosen: Tensor  # [row] fp32
    rank: Tensor  # [row] int64, 1 is the most likely
    top_ids: Tensor  # [row, k] int64, ties to the lower id
    top: Tensor  # [row, k] fp32


@dataclass(frozen=True, slots=True, eq=False)
class SamplingBatch:
    """The parameters of a batch as columns on the device; build it anew only when the batch changes."""

    scale: Tensor  # [row, 1] fp32, log2(e) / temperature
    greedy: Tensor  # [row] bool
    top_k: Tensor  # [row, 1] int64, vocab where off
    top_p: Tensor  # [row, 1] fp64
    least: Tensor  # [row, 1] int64, the weight that min_p asks for
    presence: Tensor  # [row, 1] fp32
    frequency: Tensor  # [row, 1] fp32
    repetition: Tensor  # [row, 1] fp32
    seeds: Tensor  # [row] int64
    bias: tuple[Tensor, Tensor, Tensor] | None  # row [n], id [n] and value [n]
    logprobs: int | None
    all_greedy: bool
    penalised: bool
    truncated: bool  # some row uses top-k or top-p

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab: int, device: torch.device) -> Self:
        def column(values: Iterable[float], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(list(values), dtype=dtype).to(device)[:, None]

        asked = [p.logprobs for p in params if p.logprobs is not None]
        return cls(
            scale=column(scale_of(p) for p in params),
            greedy=column((p.greedy for p in params), torch.bool)[:, 0],
            top_k=column((min(p.top_k or vocab, vocab) for p in params), torch.int64),
            top_p=column((p.top_p for p in params), torch.float64),
            least=column((least_weight(p) for p in params), torch.int64),
            presence=column(p.presence_penalty for p in params),
            frequency=column(p.frequency_penalty for p in params),
            repetition=column(p.repetition_penalty for p in params),
            seeds=column((p.row_seed for p in params), torch.int64)[:, 0],
            bias=_bias_triples(params, device),
            logprobs=min(max(asked), vocab) if asked else None,
            all_greedy=all(p.greedy for p in params),
            penalised=any(p.penalised for p in params),
            truncated=any(not p.greedy and (p.top_k or p.top_p < 1) for p in params),
        )


History = Sequence[tuple[Sequence[int], Sequence[int]]] | TokenCounts


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams] | SamplingBatch,
    history: History | None = None,
    steps: Tensor | Sequence[int] | None = None,
) -> tuple[Tensor, Logprobs | None]:
    """One token id a row [row] int64, and logprobs if any row asked for them.

    logits [row, vocab]; history: each row's (prompt ids, generated ids), or their TokenCounts, needed where a row has penalties; steps [row]: how
    many tokens the row has generated, needed where a row is not greedy.
    """
    batch = params if isinstance(params, SamplingBatch) else SamplingBatch.of(params, logits.shape[-1], logits.device)
    raw = logits.float()
    biased = _with_penalties(_with_bias(raw, batch), batch, history)
    ids = biased.argmax(dim=-1)
    if not batch.all_greedy:
        assert steps is not None, "rows that are not greedy need their step numbers"
        steps = torch.as_tensor(steps, dtype=torch.int64, device=logits.device)
        ids = torch.where(batch.greedy, ids, first_beyond(_distribution(biased, batch), uniform(batch.seeds, steps)))
    return ids, None if batch.logprobs is None else logprobs_of(raw, ids, batch.logprobs)


def logprobs_of(logits: Tensor, ids: Tensor, top: int) -> Logprobs:
    """Logprobs of the chosen `ids` [row] under `logits` [row, vocab], with the `top` best beside them."""
    values = torch.log_softmax(logits.float(), dim=-1)
    chosen = values.gather(1, ids[:, None])
    rank = (values > chosen).sum(dim=-1) + 1
    order = values.argsort(dim=-1, descending=True, stable=True)[:, :top]
    return Logprobs(chosen[:, 0], rank, order, values.gather(1, order))


def _with_bias(logits: Tensor, batch: SamplingBatch) -> Tensor:
    if batch.bias is None:
        return logits
    rows, ids, values = batch.bias
    return logits.index_put((rows, ids), values, accumulate=True)


def _with_penalties(logits: Tensor, batch: SamplingBatch, history: History | None) -> Tensor:
    """Repetition over prompt and generated tokens (divides positive logits, multiplies others); frequency and presence over generated ones."""
    if not batch.penalised:
        return logits
    assert history is not None, "rows with penalties need their history"
    counts = history if isinstance(history, TokenCounts) else TokenCounts.of(history, logits.shape[-1], logits.device)
    seen = counts.prompt | (counts.generated > 0)
    repeated = torch.where(logits > 0, logits / batch.repetition, logits * batch.repetition)
    logits = torch.where(seen, repeated, logits)
    return logits - batch.frequency * counts.generated - batch.presence * (counts.generated > 0)


def _distribution(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Weights [row, vocab] int64 after temperature, min-p, top-k and top-p."""
    weights = fixed_weights(logits, batch.scale)
    weights = weights.masked_fill(weights < batch.least, 0)
    return _truncate(logits, weights, batch) if batch.truncated else weights


def _truncate(logits: Tensor, weights: Tensor, batch: SamplingBatch) -> Tensor:
    """Keeps the top_k largest logits, then the fewest of these that reach top_p of their sum; ties to the lower id."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    rank = torch.arange(order.shape[-1], device=order.device)
    ranked = weights.gather(1, order).masked_fill(rank >= batch.top_k, 0)
    total = ranked.cumsum(dim=-1)
    beyond = (total - ranked >= share_of(total[:, -1:], batch.top_p)) & (batch.top_p < 1)
    return torch.zeros_like(weights).scatter(1, order, ranked.masked_fill(beyond, 0))


def _bincount(ids: Sequence[int], vocab: int) -> Tensor:
    return torch.bincount(torch.tensor(list(ids), dtype=torch.int64), minlength=vocab)


def _bias_triples(params: Sequence[SamplingParams], device: torch.device) -> tuple[Tensor, Tensor, Tensor] | None:
    triples = [(row, token, value) for row, p in enumerate(params) for token, value in p.logit_bias]
    if not triples:
        return None
    rows, ids, values = zip(*triples)
    return torch.tensor(rows).to(device), torch.tensor(ids).to(device), torch.tensor(values, dtype=torch.float32).to(device)
