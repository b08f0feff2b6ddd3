"""Loads a model and runs its layers: transformers' own modules, with attention handed to whoever calls `forward`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from ..rope import Rope
from .adapters import AttentionContext, adapt
from .catalog import BUILTINS
from .convert import load_gguf, read_weights
from .errors import ModelError
from .outline import bare_module, rotary_of
from .progress import Progress, default_progress
from .pull import pull
from .shape import ModelShape, presets, resolve_config
from .tokenizer import ByteTokenizer, ModelTokenizer, Tokenizer, directory_tokenizer, eos_ids_of, gguf_tokenizer, has_tokenizer

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run; its attention modules are adapters."""

    shape: ModelShape
    tokenizer: Tokenizer
    module: PreTrainedModel
    device: torch.device
    dtype: torch.dtype
    rope: Rope
    eos_ids: tuple[int, ...]

    @property
    def config(self) -> PretrainedConfig:
        """transformers', with what it makes of absent keys."""
        return self.module.config

    @torch.no_grad()
    def forward(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext, logits_at: Tensor | None = None) -> Tensor:
        """Logits [row, vocab] in fp32 at one token of each row.

        input_ids and positions [row, token] int64; logits_at [row] token indexes, the last token by default.
        """
        hidden = self.hidden_states(input_ids, positions, attention)
        return self.logits(_pick(hidden, logits_at))

    def hidden_states(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext) -> Tensor:
        """Output of the last layer, before the final norm [row, token, hidden]."""
        decoder = self.module.model
        hidden = decoder.embed_tokens(input_ids)
        for layer in decoder.layers:
            hidden = layer(hidden, position_ids=positions, position_embeddings=None, attention=attention)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] in fp32 of the last layer's output [..., hidden]."""
        return self.module.lm_head(self.module.model.norm(hidden)).float()


def load_model(
    name_or_path: str | Path,
    dtype: DTypeName = "auto",
    device: str | torch.device = "cpu",
    load_format: LoadFormat = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> LoadedModel:
    """A built-in model (pulled if missing), a local Hugging Face directory, a .gguf file, or with load_format="dummy" any shape with random weights.

    dtype "auto" is the dtype that the config states; device "auto" is CUDA where there is one. Nothing is ever fetched from a hub. Raises ModelError.
    """
    device = _device(device)
    if load_format == "dummy":
        return _load_dummy(str(name_or_path), dtype, device, seed)
    if str(name_or_path) in BUILTINS:
        path = pull(str(name_or_path), progress)
        return _load_directory(path, str(name_or_path), dtype, device, progress)
    path = Path(name_or_path).expanduser()
    if str(name_or_path) in presets() and not path.exists():
        raise ModelError(f"'{name_or_path}' is a shape without weights", "give a local model directory, or --load-format dummy for random weights")
    if path.suffix == ".gguf":
        return _load_gguf(path, dtype, device)
    return _load_directory(path, str(name_or_path), dtype, device, progress)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"'{device}' is no device", "use cpu, cuda or auto") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ModelError("there is no CUDA device here, or torch was built without CUDA", "use --device cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"there is no device '{device}'", f"use cuda:0 to cuda:{torch.cuda.device_count() - 1}, or cpu")
    return found


def _load_directory(path: Path, name: str, dtype: DTypeName, device: torch.device, progress: Progress | None) -> LoadedModel:
    shape = ModelShape.from_config(resolve_config(path), name)  # refuses what cannot run, before any weight is read
    report, stage = progress or default_progress(), f"loading {name}"
    report(stage, 0, 0)
    module = read_weights(path, dtype=_dtype(dtype, shape), **_placement(device))
    report(stage, 1, 1)
    return _assemble(module, shape, device, _directory_tokenizer(path, module))


def _load_gguf(path: Path, dtype: DTypeName, device: torch.device) -> LoadedModel:
    shape = ModelShape.from_config(resolve_config(path), path.stem)
    module = load_gguf(path, _dtype(dtype, shape)).to(device)
    backend = gguf_tokenizer(path)
    return _assemble(module, shape, device, ModelTokenizer(backend, eos_ids_of(module.config.eos_token_id, backend.eos_token_id)))


def _load_dummy(name: str, dtype: DTypeName, device: torch.device, seed: int) -> LoadedModel:
    config = resolve_config(name)
    shape = ModelShape.from_config(config, name)
    module = bare_module(config, shape, _dtype(dtype, shape)).to_empty(device=device)
    module.tie_weights()
    module.model.rotary_emb = rotary_of(module, device)
    _fill(module, seed)
    return _assemble(module.eval(), shape, device, ByteTokenizer())


@torch.no_grad()
def _fill(module: PreTrainedModel, seed: int) -> None:
    """Random weights that keep activations near unit size, in the order of their names: matrices N(0, 1/fan_in), norms near 1, biases near 0."""
    generator = torch.Generator(device=module.device).manual_seed(seed)
    for name, weight in module.named_parameters():
        if weight.ndim > 1:
            weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)
        elif name.endswith("bias"):
            weight.normal_(0.0, 0.1, generator=generator)
        else:
            weight.normal_(1.0, 0.1, generator=generator)


def _assemble(module: PreTrainedModel, shape: ModelShape, device: torch.device, tokenizer: Tokenizer) -> LoadedModel:
    module.requires_grad_(False)
    rope = Rope.of_module(module.model.rotary_emb).to(device)
    scales = {adapter.scale for adapter in adapt(module.model.layers, shape.family)}
    assert len(scales) == 1, f"{shape.name}: layers scale their scores differently: {sorted(scales)}"
    if device.type == "cuda":
        from ..gpu.modules import fuse_modules

        fuse_modules(module)
    dtype = module.model.embed_tokens.weight.dtype
    shape = replace(shape, scale=scales.pop(), dtype=str(dtype).removeprefix("torch."))
    return LoadedModel(shape, tokenizer, module, device, dtype, rope, tokenizer.eos_ids)


def _directory_tokenizer(path: Path, module: PreTrainedModel) -> Tokenizer:
    generation = module.generation_config.eos_token_id if module.generation_config is not None else None
    if not has_tokenizer(path):
        warnings.warn(f"{path} holds no tokenizer: text is taken as bytes, one token each", stacklevel=4)
        return ByteTokenizer(eos_ids_of(generation, module.config.eos_token_id))
    backend = directory_tokenizer(path)
    return ModelTokenizer(backend, eos_ids_of(generation, module.config.eos_token_id, backend.eos_token_id))


def _dtype(dtype: DTypeName, shape: ModelShape) -> torch.dtype:
    if dtype == "auto":
        return DTYPES[shape.dtype]
    if dtype not in DTYPES:
        raise ModelError(f"dtype '{dtype}' is not supported", f"auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _placement(device: torch.device) -> dict[str, torch.device]:
    """Weights go straight to an accelerator; on the CPU they stay mapped from the file."""
    return {} if device.type == "cpu" else {"device_map": device}


def _pick(hidden: Tensor, at: Tensor | None) -> Tensor:
    """hidden [row, hidden] at token `at` of each row."""
    if at is None:
        return hidden[:, -1]
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), at]
