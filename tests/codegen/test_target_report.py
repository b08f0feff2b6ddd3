"""`explain --target`: which steps are kernels on a CUDA device, and the spec line of what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sparsec_runtime.models.outline import load_outline

from sparsec.codegen.target_report import report_text, target_report
from sparsec.diagnostics import Source
from sparsec.pipeline import Compilation


def test_a_method_in_a_graph_names_its_kernels() -> None:
    report = target_report(Compilation.load("h2o"), None)
    assert report.eager == () and "add_mass" in report.kernels and "write_rows" in report.kernels
    text = report_text(report, "h2o")
    assert "add_mass" in text and "sparsec compile h2o --emit decode" in text and "--model tells" in text


def test_how_rows_go_is_said_and_why_they_stay_in_order() -> None:
    how = {name: target_report(Compilation.load(name), None).evictions for name in ("h2o", "snapkv", "kivi", "dense")}
    assert "the newest takes its slot" in how["h2o"] and "the newest takes its slot" in report_text(target_report(Compilation.load("h2o"), None), "h2o")
    assert how["snapkv"] == how["kivi"] == how["dense"] == ""
    text = (
        "sparse 1\nmethod mine {{\n  state chosen: set[t] = all shared\n"
        "  on after_decode_attention for layer == 0 {{\n    let share[i, h, g, t] = softmax[t in all - sink(2) - recent(3)](logits[i, h, g, t])\n"
        "    chosen = top[t in all - sink(2) - recent(3)](max[i, h, g](share[i, h, g, t]), 4)\n  }}\n"
        "  on build_decode_selection for layer > 0 {{\n    attend sink(2) | recent(3) | chosen\n  }}\n"
        "  on finish_step when len > 20 {{\n    evict keep {kept}\n  }}\n}}\n"
    )
    ordered, torch = (target_report(Compilation(Source("mine.sparse", text.format(kept=kept))), None) for kept in ("recent(20)", "every(2)"))
    assert "also where one row goes: a choice of tokens" in ordered.evictions
    assert torch.evictions == "torch functions between two graphs"


def test_how_positions_are_counted_anew_is_said() -> None:
    params = {"h2o": {"positions": "cache"}, "streamingllm": {}}
    turned, twice = (target_report(Compilation.load(name, params=given), None) for name, given in params.items())
    assert turned.eager == twice.eager == () and "reads K before RoPE and turns it" in report_text(turned, "h2o") and "two queries" in twice.positions
    assert "attention takes slots for ranks" in turned.evictions
    assert target_report(Compilation.load("h2o"), None).positions == ""


def test_chosen_rows_are_not_turned_at_their_ranks() -> None:
    text = (
        "sparse 1\nmethod mine {\n  zone main {\n    decode K[t, h, c] = rope(K_raw[t, h, c], order(t))\n  }\n"
        "  state chosen: set[t] = all shared\n"
        "  on after_decode_attention for layer == 0 {\n    let share[i, h, g, t] = softmax[t in all - sink(2) - recent(3)](logits[i, h, g, t])\n"
        "    chosen = top[t in all - sink(2) - recent(3)](max[i, h, g](share[i, h, g, t]), 4)\n  }\n"
        "  on build_decode_selection for layer > 0 {\n    attend sink(2) | recent(3) | chosen\n  }\n}\n"
    )
    report = target_report(Compilation(Source("mine.sparse", text)), None)
    assert len(report.eager) == 1 and "the step chooses rows" in report.eager[0] and report.positions == ""


def test_a_hook_without_a_kernel_is_named_with_its_line(tmp_path) -> None:
    path = tmp_path / "loud.sparse"
    path.write_text(
        'sparse 1\n\nmethod loud "Reads the tokens with the largest keys" {\n  param budget: tokens in 1.. = 64\n\n'
        "  on build_decode_selection when len > budget {\n    attend recent(8) | top[t](max[c, h](K[t, h, c]), budget)\n  }\n}\n"
    )
    report = target_report(Compilation.load(str(path)), None)
    assert report.kernels == () and len(report.eager) == 1 and report.eager[0].startswith("line 6, on build_decode_selection: ")
    assert "torch functions, because" in report_text(report, "loud.sparse")


def test_the_torch_target_says_that_it_was_asked_for() -> None:
    report = target_report(Compilation.load("dense", target="torch"), None)
    assert report.kernels == () and "--target triton" in report.eager[0]


def test_prompts_name_what_keeps_cudnn_out() -> None:
    dense, model = Compilation.load("dense"), load_outline("llama-3.1-8b")
    assert target_report(dense, model).no_library == () and target_report(dense, None).no_library is None
    wide = target_report(dense, replace(model, shape=replace(model.shape, head_dim=256, dtype="float32")))
    assert len(wide.no_library) == 2 and "256 channels" in report_text(wide, "dense")


def test_what_only_follows_from_a_hook_without_a_kernel_is_not_said() -> None:
    """Each page's summaries, a state and a zone: the hook that reads or fills them is named, and no more."""
    report = target_report(Compilation.load("quest", params={"heads": "query_head"}), None)
    assert len(report.eager) == 1 and report.eager[0].startswith("line 21, on build_decode_selection: ")
    texts = {
        "after_decode_attention": "  state care[t, h]: f32 = 0\n  on after_decode_attention {\n    care[t, h] += 2 * sum[i, g](probs[i, h, g, t])\n  }\n"
        "  on finish_step when len > 8 {\n    evict keep top[t](care[t, h], 8)\n  }\n",
        "finish_step": "  zone tail {\n  }\n  zone rest {\n  }\n  on finish_step when len > 8 {\n    move every(3) to rest\n  }\n",
    }
    for hook, text in texts.items():
        (reason,) = target_report(Compilation(Source("mine.sparse", f"sparse 1\nmethod mine {{\n{text}}}\n")), None).eager
        assert f", on {hook}: " in reason


def test_a_state_that_no_named_hook_touches_is_still_said() -> None:
    text = (
        "sparse 1\nmethod mine {\n  state care[t, h]: f32 = 0\n  on after_prefill_attention {\n    care[t, h] += sum[i, g](probs[i, h, g, t])\n  }\n"
        "  on build_decode_selection when len > 8 {\n    attend recent(8)\n  }\n"
        "  on end_of_prompt when len > 8 {\n    evict keep top[t](care[t, h], 8)\n  }\n}\n"
    )
    hook, state = target_report(Compilation(Source("mine.sparse", text)), None).eager
    assert ", on build_decode_selection: " in hook and state == "state 'care' is kept by no kernel"


def test_each_prompt_hook_says_what_runs_it_with_its_line() -> None:
    sums = "torch functions; Triton kernels sum the probs"
    expected = {
        "h2o": (f"line 22, on after_prefill_attention: {sums}", "line 27, on end_of_prompt: torch functions", "line 27, on finish_step: torch functions"),
        "snapkv": (f"line 15, on end_of_prompt: {sums}",),
        "dense": (),
        "quest": (),
    }
    for name, lines in expected.items():
        compilation = Compilation.load(name)
        report = target_report(compilation, None)
        assert report.prompt_hooks == lines
        assert [line[16:] for line in report_text(report, name).splitlines() if ": torch functions" in line] == list(lines)


@pytest.mark.parametrize(("method", "params", "reasons"), [
    ("dense", {}, ()), ("kivi", {}, ()), ("ada_snapkv", {}, ()), ("h2o", {}, ()),
    ("h2o", {"positions": "cache"}, ("K lies before RoPE, and queries are turned at their ranks",)),
])  # fmt: skip
def test_what_stores_the_rows_of_prompts_is_said(method: str, params: dict[str, str], reasons: tuple[str, ...]) -> None:
    report = target_report(Compilation.load(method, params=params), None)
    assert report.unwritten == reasons
    text = report_text(report, method)
    assert ("prompt rows   turned and stored by a Triton kernel" in text) == (not reasons)
    assert all(reason in text for reason in reasons)


def test_masked_chunks_are_summed_in_torch_and_decode_has_no_prompt_hook() -> None:
    text = (
        "sparse 1\nmethod mine {\n  state care[t, h]: f32 = 0\n"
        "  on build_prefill_selection when len > 8 {\n    attend recent(8)\n  }\n"
        "  on after_prefill_attention {\n    care[t, h] += sum[i, g](probs[i, h, g, t])\n  }\n"
        "  on finish_step when decoding and len > 8 {\n    evict keep top[t](care[t, h], 8)\n  }\n}\n"
    )
    report = target_report(Compilation(Source("mine.sparse", text)), None)
    assert report.prompt_hooks == ("line 4, on build_prefill_selection: torch functions", "line 7, on after_prefill_attention: torch functions")
