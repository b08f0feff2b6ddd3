"""Turns a GGUF file into a Hugging Face directory, once: dequantised fp32 safetensors load in about a second where the GGUF takes ten to twenty.

fp32, because Q4_1 and Q8_0 blocks (fp16 scale times a small integer, plus an fp16 minimum) do not fit bf16: rounding would change the greedy ids.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from .errors import ModelError
from .progress import Progress, silent
from .tokenizer import gguf_tokenizer


def convert_gguf(gguf: Path, out: Path, report: Progress = silent) -> None:
    """Writes config, generation config, tokenizer and model.safetensors into the directory `out`."""
    stage = f"converting {gguf.name}"
    report(stage, 0, 4)
    module = load_gguf(gguf, torch.float32)
    report(stage, 2, 4)
    save_file(_own_tensors(module), out / "model.safetensors", metadata={"format": "pt"})
    report(stage, 3, 4)
    _write_config(module, out)
    gguf_tokenizer(gguf).save_pretrained(out)
    report(stage, 4, 4)


def load_gguf(gguf: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model in a GGUF file, dequantised to `dtype`."""
    return read_weights(gguf.parent, gguf_file=gguf.name, dtype=dtype)


def read_weights(directory: Path, **options: object) -> PreTrainedModel:
    """transformers' model with every weight from `directory`; a file that is damaged or lacks weights is refused, never filled at random."""
    try:
        with quiet_bars():
            module, info = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the weights in {directory} do not load: {error}") from error
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{directory} lacks {len(missing)} of the model's weights, among them {missing[0]}")
    return module


@contextlib.contextmanager
def quiet_bars() -> Iterator[None]:
    """Drops the progress bars that transformers draws where nobody watches; what it warns about passes through afterwards."""
    if sys.stderr.isatty():
        yield
        return
    kept = io.StringIO()
    try:
        with contextlib.redirect_stderr(kept):
            yield
    finally:
        lines = kept.getvalue().replace("\r", "\n").splitlines()
        sys.stderr.writelines(f"{line}\n" for line in lines if line.strip() and not _is_bar(line))


def _is_bar(line: str) -> bool:
    return "%|" in line or "it/s]" in line


def _own_tensors(module: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The state without the second name of tied weights, which loading ties again."""
    tied = {"lm_head.weight"} if module.config.tie_word_embeddings else set()
    return {name: tensor.contiguous() for name, tensor in module.state_dict().items() if name not in tied}


def _write_config(module: PreTrainedModel, out: Path) -> None:
    config = module.config.to_dict()
    config.pop("quantization_config", None)
    config.pop("_name_or_path", None)
    config["architectures"] = [type(module).__name__]
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if module.generation_config is not None:
        module.generation_config.save_pretrained(out)
