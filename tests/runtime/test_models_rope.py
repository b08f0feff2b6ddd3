"""RoPE: bit-equal to transformers' rotation, relative, and shaped by its positions."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from sparsec_runtime.rope import Rope

SCALINGS = [
    {"rope_type": "default", "rope_theta": 1e4},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
def test_half_split_is_bit_equal_to_transformers(scaling: dict[str, object], dtype: torch.dtype) -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=256, rope_parameters=scaling)
    module = LlamaRotaryEmbedding(config)
    rope = Rope.of_module(module)
    q, k = torch.randn(2, 33, 4, 16).to(dtype), torch.randn(2, 33, 2, 16).to(dtype)
    positions = torch.randint(0, 256, (2, 33))
    cos, sin = module(q, positions)
    expected_q, expected_k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    angles = rope.cos_sin(positions)
    assert torch.equal(rope.rotate(q, *angles), expected_q.transpose(1, 2))
    assert torch.equal(rope.rotate(k, *angles), expected_k.transpose(1, 2))


def test_plain_is_the_original_embedding() -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    assert torch.equal(Rope.plain(1e4, 16).inv_freq, LlamaRotaryEmbedding(config).inv_freq)


@pytest.mark.parametrize("style", ["half-split", "interleaved"])
def test_scores_depend_on_distance_alone(style: str) -> None:
    rope = Rope.plain(1e4, 16, style)
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(at: int, key_at: int) -> torch.Tensor:
        return (rope.rotate(q, *rope.cos_sin(torch.tensor([at]))) * rope.rotate(k, *rope.cos_sin(torch.tensor([key_at])))).sum()

    torch.testing.assert_close(score(9, 4), score(105, 100), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(score(0, 0), (q * k).sum())


def test_interleaved_is_half_split_with_channels_reordered() -> None:
    half, woven = Rope.plain(1e4, 16), Rope.plain(1e4, 16, "interleaved")
    x, positions = torch.randn(5, 2, 16), torch.arange(5)
    order = torch.arange(16).view(2, 8).t().flatten()  # interleaved channel -> half-split channel
    expected = half.rotate(x, *half.cos_sin(positions))[..., order]
    assert torch.equal(woven.rotate(x[..., order], *woven.cos_sin(positions)), expected)


def test_channels_beyond_the_rotary_ones_pass_through() -> None:
    rope, x = Rope.plain(1e4, 8), torch.randn(3, 2, 16)
    turned = rope.rotate(x, *rope.cos_sin(torch.arange(3)))
    assert torch.equal(turned[..., 8:], x[..., 8:]) and turned.shape == x.shape


def test_positions_may_have_any_shape_and_differ_by_head() -> None:
    rope, positions = Rope.plain(1e4, 16), torch.arange(24).view(2, 3, 4)
    cos, sin = rope.cos_sin(positions)
    assert cos.shape == (2, 3, 4, 16) and cos.dtype == torch.float32
    x = torch.randn(2, 3, 4, 16)  # angles of x's own rank: one position per head
    assert torch.equal(rope.rotate(x, cos, sin)[0, 1], rope.rotate(x[0, 1, :, None], *rope.cos_sin(positions[0, 1]))[:, 0])
