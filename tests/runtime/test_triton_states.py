"""What a token state takes from the newest query, in interpreter mode: added, put in its place, or the larger kept; rows are evicted by it."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs the compiled kernels", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

from engines import engine, ids_of_rows, with_kernels

from sparsec.pipeline import Compilation

SPEC = """sparse 1

method held "Keeps what queries needed, and a recent window" {{
  param budget: tokens in 1.. = 24
  param recent: tokens in 1..budget = min(4, budget)

  state need[t, h]: f32 = 0

  on after_prefill_attention, after_decode_attention {{
    need[t, h] {update}
  }}

  on end_of_prompt, finish_step when prompt_done and len > budget {{
    evict keep recent(recent) then top[t](need[t, h]) upto budget
  }}
}}
"""
UPDATES = {
    "+=": "+= sum[i](mean[g](probs[i, h, g, t]))",
    "=": "= max[i](sum[g](probs[i, h, g, t]))",
    "= the larger of itself and": "= max(need[t, h], max[i](max[g](probs[i, h, g, t])))",
}


def ids(path, kernels):
    made = engine(path, params={})
    made = with_kernels(made) if kernels else made
    return ids_of_rows(made, (40, 9), 8), made.graphs.bulk_steps if kernels else 0


@pytest.mark.parametrize("how", UPDATES)
def test_a_state_kept_by_a_kernel_evicts_what_the_eager_path_evicts(tmp_path, how):
    path = tmp_path / "held.sparse"
    path.write_text(SPEC.format(update=UPDATES[how]))
    assert f"need[t, h] {how} the " in Compilation.load(str(path)).decode
    found, bulk = ids(str(path), kernels=True)
    assert found == ids(str(path), kernels=False)[0] and bulk > 0


def test_another_update_is_no_kernel(tmp_path):
    path = tmp_path / "held.sparse"
    path.write_text(SPEC.format(update="= 0.5 * need[t, h] + sum[i](mean[g](probs[i, h, g, t]))"))
    compilation = Compilation.load(str(path))
    assert compilation.decode is None and "after_decode_attention" in compilation.skeletons.reasons[0]
