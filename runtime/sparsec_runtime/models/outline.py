"""What a model's config says of its layers, without a weight: enough to tell which kernels serve it, and the bare module that weights are put in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from ..rope import Rope
from .errors import ModelError
from .shape import Config, ModelShape, resolve_config


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """config: transformers', with what it makes of absent keys."""

    shape: ModelShape
    config: PretrainedConfig
    rope: Rope


def load_outline(name_or_path: str | Path) -> ModelOutline:
    """Of a preset, a model directory or a .gguf file, of which only the config is read; raises ModelError where loading the model would."""
    config = resolve_config(name_or_path)
    shape = ModelShape.from_config(config, str(name_or_path))
    module = bare_module(config, shape, getattr(torch, shape.dtype))
    return ModelOutline(shape, module.config, Rope.of_module(rotary_of(module, torch.device("cpu"))))


def bare_module(config: Config, shape: ModelShape, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' model on the meta device: shapes without values."""
    options = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(_config_of(shape, options), dtype=dtype)


def rotary_of(module: PreTrainedModel, device: torch.device) -> nn.Module:
    """A bare module's rotary embedding with values: its buffers follow from the config alone."""
    return type(module.model.rotary_emb)(config=module.config).to(device)


def _config_of(shape: ModelShape, options: dict[str, object]) -> PretrainedConfig:
    """The library's config; what it refuses is an error of the model's config.json."""
    try:
        return AutoConfig.for_model(shape.family, **options)
    except (StrictDataclassError, ValueError, TypeError) as error:
        reason = error.__cause__ or error
        raise ModelError(f"the config of '{shape.name}' is not a {shape.family} config: {reason}", "correct its config.json") from error
