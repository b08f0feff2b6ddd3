"""The shape of a model: every number that a plan, a capacity formula or a pool needs, read without torch and without weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import ModelError
from .gguf import config_of, read_header

Config = Mapping[str, object]

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # how transformers' configurations name their number
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PRESETS = Path(__file__).with_name("presets.json")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of the GQA kind. Lengths are counts; `scale` multiplies q·k before the softmax."""

    name: str
    family: str
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    max_positions: int
    rope_theta: float
    rms_eps: float
    tied: bool
    qk_norm: bool
    attention_bias: bool
    dtype: str
    scale: float

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q_heads // self.kv_heads

    @property
    def parameters(self) -> int:
        """Number of weights, biases and norms left out (they are under a thousandth)."""
        attention = self.hidden * self.head_dim * 2 * (self.q_heads + self.kv_heads)
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weight_bytes(self) -> int:
        return self.parameters * DTYPE_BYTES[self.dtype]

    @classmethod
    def from_config(cls, config: Config, name: str) -> ModelShape:
        """The shape that a Hugging Face config dict (config.json) describes."""
        family = _family(config, name)
        hidden, q_heads = _count(config, "hidden_size", name), _count(config, "num_attention_heads", name)
        kv_heads = _count(config, "num_key_value_heads", name, default=q_heads)
        head_dim = _count(config, "head_dim", name, default=128 if family == "qwen3" else hidden // q_heads)
        if q_heads % kv_heads:
            raise ModelError(f"{name}: {q_heads} query heads cannot share {kv_heads} KV heads evenly")
        shape = cls(
            name=name,
            family=family,
            layers=_count(config, "num_hidden_layers", name),
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            hidden=hidden,
            intermediate=_count(config, "intermediate_size", name),
            vocab=_count(config, "vocab_size", name),
            max_positions=_count(config, "max_position_embeddings", name),
            rope_theta=_rope_theta(config),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=family == "qwen3",
            attention_bias=family == "qwen2" or bool(config.get("attention_bias", False)),
            dtype=_dtype(config, name),
            scale=head_dim**-0.5,
        )
        _refuse_sliding_window(config, shape)
        return shape


def resolve_shape(name_or_path: str | Path) -> ModelShape:
    """The shape of a preset, of a directory with config.json, or of a .gguf file (only its header is read)."""
    return ModelShape.from_config(resolve_config(name_or_path), str(name_or_path))


def resolve_config(name_or_path: str | Path) -> dict[str, object]:
    """The config dict behind `resolve_shape`: what a dummy model is built from."""
    if str(name_or_path) in presets():
        return copy.deepcopy(presets()[str(name_or_path)])  # transformers writes into the nested dicts that it is given
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _read_config(path / "config.json")
    if path.suffix == ".gguf" and path.is_file():
        return config_of(read_header(path))
    raise ModelError(
        f"no model '{name_or_path}'",
        f"give a directory with config.json, a .gguf file, or one of: {', '.join(sorted(presets()))}",
    )


@cache
def presets() -> dict[str, dict[str, object]]:
    """Shape presets by name, as config dicts."""
    return json.loads(_PRESETS.read_text(encoding="utf-8"))


def _read_config(path: Path) -> dict[str, object]:
    if not path.is_file():
        raise ModelError(f"{path.parent} holds no config.json", "a model directory is what save_pretrained of transformers writes")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds no JSON object")
    return config


def _family(config: Config, name: str) -> str:
    family = str(config.get("model_type", "unknown"))
    if family in FAMILIES:
        return family
    experts = experts_of(config)
    if experts > 1 or "moe" in family:
        count = f"{experts} experts" if experts else "experts"
        raise ModelError(
            f"{name}: architecture '{family}' is a mixture of {count}, which is not run yet: nothing here routes tokens to experts",
            f"take a dense model of a supported architecture: {', '.join(FAMILIES)}",
        )
    raise ModelError(f"{name}: architecture '{family}' is not supported", f"supported architectures: {', '.join(FAMILIES)}")


def experts_of(config: Config) -> int:
    """Experts of an MLP as a config states them; 0 where it names none."""
    return max(int(config.get(name) or 0) for name in EXPERTS)


def _count(config: Config, key: str, name: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{name}: config value {key} = {value!r}, but it must be a whole number of at least 1")
    return value


def _rope_theta(config: Config) -> float:
    nested = config.get("rope_parameters") or {}
    return float(config.get("rope_theta") or nested.get("rope_theta") or 10000.0)


def _dtype(config: Config, name: str) -> str:
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"{name}: weights of dtype '{dtype}' are not supported", f"supported: {', '.join(DTYPE_BYTES)}")
    return dtype


def _refuse_sliding_window(config: Config, shape: ModelShape) -> None:
    window = _active_window(config, shape)
    if window is not None and window < shape.max_positions:
        raise ModelError(
            f"{shape.name}: its layers attend only to the last {window} of {shape.max_positions} positions (sliding_window), "
            "which this version does not support: attending to everything would change the model",
            f"lower max_position_embeddings to {window} in config.json to use it within its window, or take a release without a window",
        )


def _active_window(config: Config, shape: ModelShape) -> int | None:
    """The window that some layer uses, or None. Absent keys mean what transformers' config classes make of them."""
    if shape.family == "llama":
        return None
    if shape.family == "mistral":
        return config.get("sliding_window", 4096)  # MistralConfig's default
    layer_types = config.get("layer_types")
    if layer_types is not None:
        sliding = "sliding_attention" in layer_types
    else:
        sliding = bool(config.get("use_sliding_window", False)) and int(config.get("max_window_layers", 28)) < shape.layers
    return config.get("sliding_window", 4096) if sliding else None
