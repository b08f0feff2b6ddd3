"""Loading: adapted models give transformers' own logits; dummy weights are reproducible; the built-in model behaves as transformers runs it."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from sparsec_runtime.models.errors import ModelError
from sparsec_runtime.models.loading import LoadedModel, load_model
from sparsec_runtime.models.shape import presets, resolve_config, resolve_shape
from sparsec_runtime.models.tokenizer import ByteTokenizer
from sparsec_runtime.rope import Rope

TINY = ["tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"]


@dataclass
class FullAttention:
    """Causal attention over everything seen; grows by concatenation."""

    rope: Rope
    positions: Tensor  # [row, token] of this pass
    scale: float
    seen: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        cos, sin = self.rope.cos_sin(self.positions)
        q, k = self.rope.rotate(q, cos, sin), self.rope.rotate(k, cos, sin)
        if layer in self.seen:
            k, v = torch.cat((self.seen[layer][0], k), 1), torch.cat((self.seen[layer][1], v), 1)
        self.seen[layer] = (k, v)
        mask = torch.arange(k.shape[1])[None, None, None] <= self.positions[:, None, :, None]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=self.scale, enable_gqa=True)
        return out.transpose(1, 2)


def run_in_pieces(model: LoadedModel, ids: Tensor, pieces: list[int]) -> Tensor:
    """Logits of the last token after running `ids` [row, token] in consecutive pieces."""
    attention, start = FullAttention(model.rope, ids[:, :0], model.shape.scale), 0
    for size in pieces:
        attention.positions = torch.arange(start, start + size).expand(ids.shape[0], -1)
        logits = model.forward(ids[:, start : start + size], attention.positions, attention)
        start += size
    return logits


def save(name: str, directory, **changes: object) -> AutoModelForCausalLM:
    """A tiny random model of transformers' own, saved to a directory."""
    torch.manual_seed(1)
    config = resolve_config(name) | changes
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    module.save_pretrained(directory)
    return module


@pytest.mark.parametrize("name", TINY)
@pytest.mark.filterwarnings("ignore:.*holds no tokenizer")
def test_logits_equal_transformers_own(name: str, tmp_path) -> None:
    theirs = save(name, tmp_path)
    ours = load_model(tmp_path)
    ids = torch.randint(0, 256, (2, 23), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(ids).logits[:, -1]
    assert ours.shape.scale == 0.25 and isinstance(ours.tokenizer, ByteTokenizer)
    for pieces in ([23], [7, 15, 1]):
        torch.testing.assert_close(run_in_pieces(ours, ids, pieces), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*holds no tokenizer")
def test_llama3_scaling_equals_transformers_own(tmp_path) -> None:
    theirs = save("tiny-llama", tmp_path, rope_scaling=resolve_config("llama-3.1-8b")["rope_scaling"])
    ids = torch.randint(0, 256, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = theirs(ids).logits[:, -1]
    torch.testing.assert_close(run_in_pieces(load_model(tmp_path), ids, [40]), expected, atol=1e-5, rtol=1e-5)


def test_logits_are_taken_at_one_token_of_each_row() -> None:
    model = load_model("tiny-qwen3", load_format="dummy")
    ids, positions = torch.randint(0, 256, (2, 9)), torch.arange(9).expand(2, -1)
    attention = lambda: FullAttention(model.rope, positions, model.shape.scale)  # noqa: E731
    picked = model.forward(ids, positions, attention(), torch.tensor([4, 8]))
    short = model.forward(ids[:1, :5], positions[:1, :5], FullAttention(model.rope, positions[:1, :5], model.shape.scale))
    assert picked.shape == (2, 256) and picked.dtype == torch.float32
    torch.testing.assert_close(picked[0], short[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(picked[1], model.forward(ids, positions, attention())[1], atol=1e-5, rtol=1e-5)


def test_dummy_weights_depend_on_the_seed_alone() -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        return load_model("tiny-qwen2", load_format="dummy", seed=seed).module.state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_dummy_weights_come_in_bf16_with_an_fp32_rope_and_tied_embeddings() -> None:
    model = load_model("tiny-llama", dtype="bfloat16", load_format="dummy")
    assert model.dtype == torch.bfloat16 and model.shape.dtype == "bfloat16"
    assert model.rope.inv_freq.dtype == torch.float32 and torch.isfinite(model.rope.inv_freq).all()
    assert model.module.lm_head.weight is model.module.model.embed_tokens.weight


def test_a_dtype_is_one_of_those_that_configs_may_state() -> None:
    model = load_model("tiny-qwen2", dtype="float16", load_format="dummy")
    assert model.dtype == torch.float16 and model.shape.dtype == "float16"
    with pytest.raises(ModelError, match=r"dtype 'int8' is not supported\n  help: auto, float32, bfloat16, float16"):
        load_model("tiny-qwen2", dtype="int8", load_format="dummy")


def test_a_preset_without_weights_says_how_to_get_some() -> None:
    with pytest.raises(ModelError, match="dummy"):
        load_model("tiny-llama")


def test_an_unknown_model_is_a_model_error() -> None:
    for name in ("nowhere", "/nowhere/model.gguf"):
        with pytest.raises(ModelError, match="no model"):
            load_model(name)


@pytest.mark.filterwarnings("ignore:.*holds no tokenizer")
def test_a_device_that_is_not_there_is_named_with_those_that_are(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelError, match="no device 'cuda:2'\n  help: use cuda:0 to cuda:1"):
        load_model("tiny-llama", load_format="dummy", device="cuda:2")
    with pytest.raises(ModelError, match="'gpu' is no device"):
        load_model("tiny-llama", load_format="dummy", device="gpu")


def test_dynamic_rope_is_refused_with_its_reason(tmp_path) -> None:
    save("tiny-llama", tmp_path, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(ModelError, match="depend on the length"):
        load_model(tmp_path)


@pytest.mark.filterwarnings("ignore:.*holds no tokenizer")
def test_damaged_or_missing_weights_are_refused(tmp_path) -> None:
    save("tiny-llama", tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor for name, tensor in tensors.items() if "layers.1.mlp" not in name}, weights, {"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 3 of the model's weights, among them model.layers.1.mlp"):
        load_model(tmp_path)
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="do not load"):
        load_model(tmp_path)
    weights.unlink()
    with pytest.raises(ModelError, match="do not load"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", sorted(presets()))
def test_presets_mean_to_transformers_what_they_mean_to_us(name: str) -> None:
    config, shape = AutoConfig.for_model(**resolve_config(name)), resolve_shape(name)
    theirs = (config.num_key_value_heads, config.vocab_size, config.rope_parameters["rope_theta"], config.tie_word_embeddings)
    assert theirs == (shape.kv_heads, shape.vocab, shape.rope_theta, shape.tied)
    assert config.rope_parameters["rope_type"] == ("llama3" if "3.1" in name else "default")


@pytest.mark.model
def test_the_preset_of_the_built_in_model_is_its_shape() -> None:
    shape = load_model("smollm2-135m").shape
    assert replace(shape, rms_eps=1e-5) == resolve_shape("smollm2-135m") and shape.rms_eps == pytest.approx(1e-5)


@pytest.mark.model
def test_the_built_in_model_gives_transformers_own_greedy_ids() -> None:
    from sparsec_runtime.models.catalog import BUILTINS

    model = load_model("smollm2-135m")
    ids = torch.tensor([model.tokenizer.encode_chat([{"role": "user", "content": "Name the capital of France."}])])
    theirs = AutoModelForCausalLM.from_pretrained(BUILTINS["smollm2-135m"].entry, local_files_only=True)
    expected = theirs.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :].tolist()
    attention = FullAttention(model.rope, torch.arange(ids.shape[1])[None], model.shape.scale)
    found, step = [], ids
    while len(found) < len(expected):
        step = model.forward(step, attention.positions, attention).argmax(-1, keepdim=True)
        attention.positions = attention.positions[:, -1:] + 1
        found.append(step.item())
    assert found == expected and "Paris" in model.tokenizer.decode(found)


def test_a_config_that_the_library_refuses_is_a_model_error(tmp_path):
    import json

    from sparsec_runtime.models.shape import presets

    config = {**json.loads(json.dumps(presets()["tiny-llama"])), "hidden_size": 65}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="hidden size"):
        load_model(tmp_path, load_format="dummy")
