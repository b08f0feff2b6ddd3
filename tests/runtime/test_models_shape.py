"""Shapes: read from configs, presets, directories and GGUF headers, without torch; refusals say what to do."""

import json
import struct
import subprocess
import sys

import pytest

from sparsec_runtime.models.errors import ModelError
from sparsec_runtime.models.shape import ModelShape, presets, resolve_shape

LLAMA = presets()["tiny-llama"]


def test_presets_have_the_bytes_per_token_that_the_performance_notes_state() -> None:
    def kv_bytes(name: str) -> int:
        shape = resolve_shape(name)
        return 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim

    assert kv_bytes("llama-3.1-8b") == kv_bytes("llama-3.1-8b-49k") == 131_072
    assert kv_bytes("qwen3-4b") == 147_456
    assert resolve_shape("smollm2-135m").group == 3


def test_the_bench_shape_weighs_what_the_performance_notes_state() -> None:
    bench = resolve_shape("llama-3.1-8b-49k")
    looked_up = 2 * bench.vocab * bench.hidden  # a decode step reads only its own rows of the embedding
    assert bench.weight_bytes - looked_up == pytest.approx(14.36e9, rel=1e-3)
    assert resolve_shape("smollm2-135m").parameters == pytest.approx(135e6, rel=0.01)


def test_defaults_of_absent_keys_are_those_of_transformers() -> None:
    bare = {k: v for k, v in LLAMA.items() if k not in ("head_dim", "num_key_value_heads", "rope_theta", "dtype")}
    shape = ModelShape.from_config(bare, "bare")
    assert (shape.head_dim, shape.kv_heads, shape.rope_theta, shape.dtype) == (16, 4, 10000.0, "float32")


def test_rope_theta_is_found_where_newer_configs_put_it() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "rope_theta"} | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert ModelShape.from_config(config, "new").rope_theta == 5e5


@pytest.mark.parametrize(
    ("config", "count"),
    [({"model_type": "qwen3_moe", "num_experts": 128}, "128 experts"), ({"model_type": "mixtral", "num_local_experts": 8}, "8 experts"), ({"model_type": "qwen3_moe"}, "experts")],
)
def test_a_mixture_of_experts_is_refused_with_the_reason_and_what_runs_instead(config: dict[str, object], count: str) -> None:
    with pytest.raises(ModelError) as caught:
        ModelShape.from_config(config, "some/directory")
    assert str(caught.value) == (
        f"some/directory: architecture '{config['model_type']}' is a mixture of {count}, which is not run yet: nothing here routes tokens to experts\n"
        "  help: take a dense model of a supported architecture: llama, qwen2, qwen3, mistral"
    )


def test_an_unknown_architecture_is_named_with_the_supported_ones() -> None:
    with pytest.raises(ModelError, match=r"architecture 'gpt2' is not supported(.|\n)*llama, qwen2, qwen3, mistral"):
        ModelShape.from_config({"model_type": "gpt2"}, "old")


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", None), ("vocab_size", 0), ("hidden_size", "64"), ("head_dim", True)])
def test_a_bad_count_names_its_key(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=key):
        ModelShape.from_config(LLAMA | {key: value}, "bad")


@pytest.mark.parametrize(
    "config",
    [
        presets()["tiny-mistral"] | {"sliding_window": 128},
        {k: v for k, v in presets()["tiny-mistral"].items() if k != "sliding_window"} | {"max_position_embeddings": 32768},
        presets()["tiny-qwen2"] | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        presets()["tiny-qwen3"] | {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 64},
    ],
)
def test_an_active_sliding_window_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="sliding_window"):
        ModelShape.from_config(config, "windowed")


@pytest.mark.parametrize(
    "config",
    [
        presets()["tiny-mistral"] | {"sliding_window": 4096},
        presets()["tiny-qwen2"] | {"use_sliding_window": False, "sliding_window": 64},
        presets()["tiny-qwen2"] | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
    ],
)
def test_a_window_that_no_position_or_layer_feels_is_ignored(config: dict[str, object]) -> None:
    assert ModelShape.from_config(config, "idle").layers == 2


def test_a_directory_is_read_from_its_config(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert resolve_shape(tmp_path).kv_heads == 2
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        resolve_shape(tmp_path)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ModelError, match="no model 'smollm'(.|\n)*tiny-llama"):
        resolve_shape("smollm")


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _gguf() -> bytes:
    numbers = {"block_count": 2, "context_length": 64, "embedding_length": 32, "feed_forward_length": 48}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    pairs = [_text("general.architecture") + struct.pack("<I", 8) + _text("llama")]
    pairs += [_text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    pairs += [_text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + _text("a") + _text("b") + _text("c")]
    tensor = _text("token_embd.weight") + struct.pack("<IQQIQ", 2, 32, 3, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor


def test_a_gguf_header_gives_the_shape(tmp_path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(_gguf())
    shape = resolve_shape(path)
    assert (shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.tied) == (2, 4, 2, 8, 3, True)


@pytest.mark.parametrize("cut", [2, 30, 200])
def test_a_cut_gguf_is_a_clear_error(tmp_path, cut: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(_gguf()[:cut])
    with pytest.raises(ModelError, match="cut.gguf"):
        resolve_shape(path)


def test_shapes_and_the_catalog_import_no_torch() -> None:
    code = "import sys; from sparsec_runtime.models import shape, catalog, pull; catalog.list_models(); sys.exit('torch' in sys.modules)"
    path = [p for p in sys.path if p]
    assert subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"]).returncode == 0
