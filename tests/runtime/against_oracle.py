"""Replays of one batch of random Q, K, V on the decode kernels, held against the oracle request by request."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsec.dsl.source import load_source
from sparsec.pipeline import Compilation
from sparsec.replay import ReplayRequest, model_facts, replay
from sparsec.replay_torch import run_batch
from sparsec.replay_triton import KernelDriver
from sparsec.trace import Trace
from sparsec_runtime.rope import Rope

PAGE = 16  # rows, where a method's params say nothing else
TOLERANCES = {torch.float32: (1e-4, 2e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (4e-3, 4e-3)}  # relative, absolute: of outputs


@dataclass(frozen=True)
class Batch:
    """One batch whose requests differ in their prompts alone. kv_heads, group, channels: of the model; theta: of RoPE, where the method rotates."""

    method: str
    params: dict[str, object] = field(default_factory=dict)
    layers: int = 2
    kv_heads: int = 2
    group: int = 2
    channels: int = 64
    prompts: tuple[int, ...] = (1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 9)
    new: int = 4
    theta: float | None = None

    def __str__(self) -> str:
        params = " ".join(f"{name}={value}" for name, value in self.params.items() if not isinstance(value, int) or isinstance(value, bool))
        return f"{self.method} {params} {self.group}x{self.kv_heads}x{self.channels}".replace("  ", " ")

    def tensors(self, tokens: int, seed: int) -> dict[str, Tensor]:
        """q, k, v [layer, token, head, channel], fp32."""
        made = torch.Generator().manual_seed(seed)
        heads = {"q": self.kv_heads * self.group, "k": self.kv_heads, "v": self.kv_heads}
        return {name: torch.randn(self.layers, tokens, count, self.channels, generator=made) for name, count in heads.items()}


def assert_kernels_equal_oracle(batch: Batch, device: str, dtype: torch.dtype = torch.float32) -> None:
    """Outputs within the dtype's tolerance; in fp32 the same rows kept and read too (rounded scores may tie)."""
    rope = None if batch.theta is None else Rope.plain(batch.theta, batch.channels)
    given = [batch.tensors(prompt + batch.new, seed) for seed, prompt in enumerate(batch.prompts)]
    for prompt, mine, tensors in zip(batch.prompts, _by_kernels(batch, given, rope, device, dtype), given, strict=True):
        spec = {"params": batch.params, "rope": rope, "rotated": rope is None, "dtype": dtype}
        oracle = replay(batch.method, **tensors, prompt_len=prompt, **spec)
        relative, absolute = TOLERANCES[dtype]
        torch.testing.assert_close(mine.output[:, prompt:], oracle.output[:, prompt:], rtol=relative, atol=absolute, msg=lambda text, at=prompt: f"prompt {at}: {text}")
        if dtype == torch.float32:
            _assert_same_rows(mine, oracle, prompt)


def _by_kernels(batch: Batch, given: list[dict[str, Tensor]], rope: Rope | None, device: str, dtype: torch.dtype) -> list[Trace]:
    requests = []
    for prompt, tensors in zip(batch.prompts, given, strict=True):
        placed = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
        requests.append(ReplayRequest(**placed, prompt_len=prompt, chunk=None, q_start=0, rotated=rope is None, rope=rope, record=()))
    compilation = Compilation(load_source(batch.method), batch.params, model_facts(requests[0]))
    return run_batch(compilation, [(compilation.dynamic_params, request) for request in requests], driver=KernelDriver)


def _assert_same_rows(mine: Trace, oracle: Trace, prompt: int) -> None:
    for name in ("kept", "attended"):
        for step, (layers, others) in enumerate(zip(getattr(mine, name), getattr(oracle, name), strict=True)):
            for layer, heads in enumerate(layers):
                for head, rows in enumerate(heads):
                    wanted = others[layer][head]
                    place = f"prompt {prompt}, {name}, step {step}, layer {layer}, head {head}"
                    assert torch.equal(rows, wanted), f"{place}: {rows.tolist()}, but the oracle says {wanted.tolist()}"
