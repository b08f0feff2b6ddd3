"""`explain --target triton --model`: the reasons are those with which the engine refuses the model's decode step, word for word."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from sparsec_runtime.cache import CacheManager
from sparsec_runtime.gpu.graphs import CannotCapture, DecodeGraphs
from sparsec_runtime.models.errors import ModelError
from sparsec_runtime.models.loading import LoadedModel, load_model
from sparsec_runtime.models.outline import load_outline
from sparsec_runtime.models.shape import resolve_config
from sparsec_runtime.rope import Rope

from sparsec.cli import main
from sparsec.codegen.target_report import report_text, target_report
from sparsec.diagnostics import Source
from sparsec.pipeline import Compilation, load_manager

# Layer 1 chooses tokens and reads those that layer 0 chose.
BOTH = (
    "sparse 1\nmethod mine {\n  state chosen: set[t] = all shared\n"
    "  on after_decode_attention for layer in {0, 1} {\n    let share[i, h, g, t] = softmax[t in all - sink(2) - recent(3)](logits[i, h, g, t])\n"
    "    chosen = top[t in all - sink(2) - recent(3)](max[i, h, g](share[i, h, g, t]), 4)\n  }\n"
    "  on build_decode_selection for layer > 0 {\n    attend sink(2) | recent(3) | chosen\n  }\n}\n"
)


def saved(directory, **changes: object) -> str:
    """A directory with the config of a tiny model, changed."""
    (directory / "config.json").write_text(json.dumps(resolve_config("tiny-llama") | changes))
    return str(directory)


def manager_of(method: type[CacheManager], model: LoadedModel) -> CacheManager:
    return method(model.shape, model.rope, model.dtype, torch.device("cpu"), 256)


def refusal(compilation: Compilation, model: LoadedModel) -> str:
    """What the engine's `eager_because` says of a method on a model; "" where its decode steps are captured."""
    try:
        DecodeGraphs(model, manager_of(load_manager(compilation), model), pool_tokens=256, capture=False)
    except CannotCapture as reasons:
        return str(reasons)
    return ""


@pytest.mark.parametrize(
    ("method", "changes", "count"),
    [
        ("dense", {}, 0),
        ("dense", {"hidden_act": "gelu"}, 1),
        ("h2o", {"hidden_act": "gelu", "num_local_experts": 8}, 2),
        ("streamingllm", {"head_dim": 24}, 1),
        ("streamingllm", {"head_dim": 24, "hidden_act": "relu"}, 2),
        (BOTH, {}, 1),
        (BOTH, {"num_hidden_layers": 1}, 0),
    ],
)
def test_explain_says_what_the_engine_says(method, changes, count, tmp_path) -> None:
    path = saved(tmp_path, **changes)
    compilation = Compilation(Source("mine.sparse", method)) if "\n" in method else Compilation.load(method)
    report = target_report(compilation, load_outline(path))
    assert "; ".join(report.eager) == refusal(compilation, load_model(path, load_format="dummy")) and len(report.eager) == count
    text = report_text(report, "mine.sparse")
    assert ("one CUDA graph a batch size" in text) == (count == 0) and ("torch functions, because" in text) == (count > 0)


def test_a_rotation_of_neighbours_is_refused_by_both() -> None:
    compilation, neighbours = Compilation.load("dense"), Rope.plain(1e4, 16, "interleaved")
    outline, model = load_outline("tiny-llama"), load_model("tiny-llama", load_format="dummy")
    report = target_report(compilation, replace(outline, rope=neighbours))
    assert report.eager == ("RoPE pairs interleaved channels",) == (refusal(compilation, replace(model, rope=neighbours)),)


def test_without_a_model_nothing_is_promised_of_its_layers() -> None:
    dense = Compilation.load("dense")
    assert "--model tells" in report_text(target_report(dense, None), "dense").split("prompt chunks")[0]
    assert "--model tells" not in report_text(target_report(dense, load_outline("tiny-llama")), "dense")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "tiny-qwen2", "tiny-qwen3", "tiny-mistral"])
def test_an_outline_is_what_the_loaded_model_is(name) -> None:
    outline = load_outline(name)
    assert outline.rope.inv_freq.device.type == "cpu" and torch.isfinite(outline.rope.inv_freq).all()
    if name.startswith("tiny"):
        model = load_model(name, load_format="dummy")
        assert (outline.shape, outline.config.to_dict(), outline.rope.dim) == (model.shape, model.config.to_dict(), model.rope.dim)
        assert torch.equal(outline.rope.inv_freq, model.rope.inv_freq)


def test_a_model_that_cannot_be_loaded_is_refused_with_the_loader_s_words(tmp_path, capsys) -> None:
    path = saved(tmp_path, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(ModelError) as refused:
        load_model(path, load_format="dummy")
    assert main(["explain", "dense", "--target", "triton", "--model", path]) == 3
    assert capsys.readouterr().err == f"sparsec explain: {refused.value}\n" and "RoPE scaling 'dynamic'" in str(refused.value)


def test_the_command_prints_the_model_s_reason(tmp_path, capsys) -> None:
    assert main(["explain", "dense", "--target", "triton", "--model", saved(tmp_path, hidden_act="gelu"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"]["eager"] == ["the MLP's activation is gelu, not silu"]
