"""The oracle against language.md: small specs whose results can be worked out by hand."""

from __future__ import annotations

import pytest
import torch
from attention_rows import attended, from_logits, from_probs, kept, values

from sparsec.diagnostics import Source
from sparsec.dsl.parser import parse
from sparsec.reference import Program, Sequence, Unsupported
from sparsec.reference.ranking import apportion, best, nucleus, ranks
from sparsec.reference.storage import Inputs
from sparsec.replay import ReplayError, replay


def spec(body: str) -> str:
    return f'sparse 1\n\nmethod tried "a spec of a test" {{\n{body}\n}}\n'


def uniform(tokens: int, kv_heads: int = 1, layers: int = 1) -> dict[str, torch.Tensor]:
    return from_logits({0: [[0.0]] * kv_heads}, tokens, kv_heads, layers)


def failures(body: str, tokens: int, prompt_len: int, chunk: int | None = None) -> list[tuple[str, int]]:
    """(text, step) of every broken ensure."""
    tensors = uniform(tokens)
    layers, _, heads, channels = tensors["k"].shape
    facts = {"n_layers": layers, "kv_heads": heads, "group": 1, "head_dim": channels, "scale": channels**-0.5}
    program = Program.of(parse(Source("test", spec(body))).method, {}, facts)
    sequence = Sequence(program, Inputs(**tensors), prompt_len, check_ensures=True)
    sequence.prefill(chunk)
    for _ in range(tokens - prompt_len):
        sequence.decode()
    return [(failure.text, failure.step) for failure in sequence.failures]


# ---- rankings --------------------------------------------------------------------------------


def mask(*entries: int) -> torch.Tensor:
    return torch.tensor(entries, dtype=torch.bool)


def test_ties_go_to_the_lower_index_and_nan_ranks_last() -> None:
    score = torch.tensor([1.0, float("nan"), 2.0, 2.0, -torch.inf])
    assert ranks(score, mask(1, 1, 1, 1, 1)).tolist() == [2, 4, 0, 1, 3]
    assert ranks(score, mask(1, 1, 1, 1, 1), largest=False).tolist() == [1, 4, 2, 3, 0]


def test_entries_that_are_no_candidates_are_never_chosen() -> None:
    chosen = best(torch.tensor([5.0, 1.0, 3.0]), mask(0, 1, 1), torch.tensor(5))
    assert chosen.tolist() == [False, True, True]


def test_a_nucleus_is_the_fewest_that_reach_the_mass() -> None:
    mass = torch.tensor([0.125, 0.5, 0.25, 0.125])
    assert nucleus(mass, mask(1, 1, 1, 1), torch.tensor(0.75)).tolist() == [False, True, True, False]
    assert nucleus(mass, mask(1, 1, 1, 1), torch.tensor(0.76)).tolist() == [True, True, True, False]


def test_apportioned_shares_sum_to_the_total() -> None:
    assert apportion(torch.tensor([1.5, 1.5, 1.0]), torch.tensor(4)).tolist() == [2, 1, 1]
    assert apportion(torch.tensor([0.0, 0.0]), torch.tensor(5)).tolist() == [3, 2]


# ---- hooks -----------------------------------------------------------------------------------

COUNTER = """
  state fired: i32 = 0
  on end_of_prompt, finish_step {
    fired = fired + 1
  }
  ensure "read" fired >= 0
"""


def test_a_binding_of_both_fires_once_in_the_step_that_ends_the_prompt() -> None:
    trace = replay(spec(COUNTER), **uniform(6), prompt_len=4, chunk=2, record=("fired",))
    assert [int(step[0].values) for step in trace.recorded["fired"]] == [2, 3, 4]


def test_finish_step_sees_what_end_of_prompt_left() -> None:
    body = """
      state seen: i32 = 0
      on end_of_prompt { evict keep recent(2) }
      on finish_step { seen = len }
      ensure "read" seen >= 0
    """
    trace = replay(spec(body), **uniform(6), prompt_len=5, record=("seen",))
    assert [int(step[0].values) for step in trace.recorded["seen"]] == [2, 3]


def test_prompt_done_turns_true_in_the_last_chunk() -> None:
    body = "on end_of_prompt, finish_step when prompt_done and len > 2 { evict keep recent(2) }"
    trace = replay(spec(body), **uniform(8), prompt_len=6, chunk=2)
    assert [kept(trace, s) for s in range(3)] == [[4, 5], [5, 6], [6, 7]]
    assert attended(trace, 0) == [0, 1, 2, 3, 4, 5]


def test_a_state_follows_its_token_and_starts_anew_for_new_rows() -> None:
    body = """
      state age[t, h]: f32 = 0
      on finish_step {
        age[t, h] += 1
        evict keep sink(1) | recent(2)
      }
      ensure "read" max[t, h](age[t, h]) >= 0
    """
    trace = replay(spec(body), **uniform(6), prompt_len=4, record=("age",))
    assert values(trace, "age", 0) == {0: 1, 2: 1, 3: 1}
    assert values(trace, "age", 2) == {0: 3, 4: 2, 5: 1}


def test_a_shared_state_is_its_initial_value_in_steps_without_a_writer() -> None:
    body = """
      state chosen: set[t] = all shared
      on after_decode_attention for layer == 0 when steps > 0 { chosen = top[t](0 - pos[t], 1) }
      on build_decode_selection for layer == 1 { attend itself(i) | chosen }
    """
    trace = replay(spec(body.replace("itself(i)", "recent(1)")), **uniform(5, layers=2), prompt_len=3)
    assert attended(trace, 1, layer=1) == [0, 1, 2, 3]
    assert attended(trace, 2, layer=1) == [0, 4]


# ---- queries ---------------------------------------------------------------------------------


def test_a_window_is_recomputed_over_the_rows_then_resident() -> None:
    """finish_step sees the eviction of end_of_prompt: probabilities sum to one over what is left."""
    body = """
      on end_of_prompt { evict keep recent(2) }
      on finish_step when prefilling {
        let mass = sum[i in last(1), t, h, g](probs[i, h, g, t])
        let seen[t] = max[i in last(1), h, g](probs[i, h, g, t])
        evict keep none then top[t](seen[t] * mass) upto 3
      }
    """
    rows = {3: [{0: 0.7, 1: 0.1, 2: 0.1, 3: 0.1}]}
    trace = replay(spec(body), **from_probs(rows, 4), prompt_len=4, record=("seen", "mass"))
    assert values(trace, "seen", 0) == pytest.approx({2: 0.5, 3: 0.5})
    assert float(trace.recorded["mass"][0][0].values) == pytest.approx(1)


def test_a_window_reaches_across_chunks() -> None:
    body = """
      on end_of_prompt {
        let votes[t] = sum[i in last(3), h, g](probs[i, h, g, t])
        evict keep recent(1) then top[t](votes[t]) upto 2
      }
    """
    rows = {2: [{0: 0.9, 1: 0.1}], 3: [{1: 1.0}], 4: [{4: 1.0}]}
    traces = [replay(spec(body), **from_probs(rows, 5), prompt_len=5, chunk=chunk, record=("votes",)) for chunk in (None, 1, 3)]
    assert values(traces[0], "votes", 0) == pytest.approx({0: 0.9, 1: 1.1, 2: 0, 3: 0, 4: 1}, abs=1e-6)
    assert [kept(trace, 0) for trace in traces] == [[1, 4]] * 3


def test_probs_are_zero_on_rows_that_were_not_attended() -> None:
    body = """
      state seen[t]: f32 = 0
      on build_decode_selection { attend recent(1) | sink(1) }
      on after_decode_attention { seen[t] = sum[i, h, g](probs[i, h, g, t]) }
      ensure "read" max[t](seen[t]) >= 0
    """
    trace = replay(spec(body), **uniform(4), prompt_len=3, record=("seen",))
    assert values(trace, "seen", 1) == {0: 0.5, 1: 0, 2: 0, 3: 0.5}


def test_recent_in_a_selection_hook_is_relative_to_each_query() -> None:
    trace = replay(spec("on build_prefill_selection { attend recent(2) }"), **uniform(4), prompt_len=4)
    assert attended(trace, 0) == [2, 3]
    assert trace.output[0, 1, 0, :2].tolist() == [0.5, 9.5]  # token 1 reads tokens 0 and 1, not 2 and 3


def test_rows_outside_a_windowed_value_are_never_ranked() -> None:
    body = """
      on end_of_prompt {
        let smooth[t] = maxpool[t in all - recent(2)](0.0 - pos[t], width = 3)
        evict keep top[t](smooth[t], 4) upto 4
      }
    """
    trace = replay(spec(body), **uniform(5), prompt_len=5, record=("smooth",))
    assert values(trace, "smooth", 0) == {0: 0, 1: 0, 2: -1}
    assert kept(trace, 0) == [0, 1, 2]


def test_heads_with_different_counts_judge_a_guard_each() -> None:
    body = """
      on end_of_prompt { evict keep none then top[t, h](sum[i in last(1), g](probs[i, h, g, t])) upto 5 }
      on finish_step when len > 3 { evict keep recent(1) }
    """
    rows = {3: [dict(enumerate([0.25] * 4)), dict(enumerate([0.97, 0.01, 0.01, 0.01]))]}
    trace = replay(spec(body), **from_probs(rows, 4, kv_heads=2), prompt_len=4)
    assert kept(trace, 0, head=0) == [3]
    assert kept(trace, 0, head=1) == [0]


# ---- pages and codecs ------------------------------------------------------------------------

PAGED = """
  param page_size: tokens in {2, 4} = 2
  on build_decode_selection {
    let worth[p] = max[t in p](0.0 - pos[t])
    attend open_page | sink(1) then top[p](worth[p]) upto 3
  }
"""


def test_every_page_that_a_protected_row_touches_costs_one() -> None:
    trace = replay(spec(PAGED), **uniform(8), prompt_len=7)
    assert attended(trace, 1) == [0, 2, 3, 6, 7]


# ---- ensures ---------------------------------------------------------------------------------


def test_an_ensure_over_kept_counts_rows_held_before_the_eviction() -> None:
    body = 'on finish_step { evict keep sink(2) }\nensure "window survives" recent(1) in kept'
    assert failures(body, tokens=4, prompt_len=3) == [("window survives", 0), ("window survives", 1)]
    assert failures(body.replace("sink(2)", "sink(1) | recent(1)"), tokens=4, prompt_len=3) == []


def test_an_ensure_over_attended_is_due_where_an_attend_ran() -> None:
    body = 'on build_decode_selection { attend recent(2) }\nensure "small" count[t in attended](1) <= 1'
    assert failures(body, tokens=4, prompt_len=3) == [("small", 1)]


def test_an_ensure_over_a_let_is_due_where_its_hook_fires() -> None:
    body = """
      on finish_step when decoding {
        let held = len
        evict keep recent(3)
      }
      ensure "short" held <= 4
    """
    assert failures(body, tokens=6, prompt_len=4) == [("short", 1)]


# ---- what is refused -------------------------------------------------------------------------


def test_an_unknown_construct_is_named_with_its_line() -> None:
    body = "on finish_step when decoding { evict keep top[t](kmeans[t](pos[t]), 2) upto 2 }"
    with pytest.raises(Unsupported, match=r"kmeans.*line 4"):
        failures(body, tokens=3, prompt_len=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_len": 9}, "prompt_len = 9 is outside 1..6"),
        ({"chunk": 0}, "chunk = 0"),
        ({"q_start": 7}, "q_start = 7"),
        ({"q_start": 2}, "with q_start = 2 it has 1 layers, 4 tokens"),
        ({"rotated": False}, "rotated=False needs rope"),
        ({"rope": {"style": "half-split"}}, "it takes theta"),
        ({"rope": {"theta": 1e4, "dim": 7}}, "rope dim = 7"),
        ({"target": "cuda"}, "target 'cuda' does not exist"),
        ({"record": ("scores",)}, "did you mean score?"),
        ({"params": {"budgets": 4}}, "did you mean `budget`"),
        ({"v": torch.zeros(1, 6, 2, 6)}, "they have one shape"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(change: dict, words: str) -> None:
    arguments = {**uniform(6), "prompt_len": 4, **change}
    with pytest.raises(ReplayError) as raised:
        replay("h2o", **arguments)
    assert words in str(raised.value)


def test_a_method_that_observes_queries_before_q_start_is_refused_with_the_hook() -> None:
    tensors = uniform(6)
    with pytest.raises(ReplayError, match="after_prefill_attention.*before q_start = 4"):
        replay("h2o", **{**tensors, "q": tensors["q"][:, 4:]}, prompt_len=5, q_start=4, params={"budget": 3})
    with pytest.raises(ReplayError, match="end_of_prompt.*observes the query at 3"):
        replay("snapkv", **{**tensors, "q": tensors["q"][:, 4:]}, prompt_len=5, q_start=4, params={"budget": 3, "window": 2})


def test_recounted_positions_need_keys_before_rope() -> None:
    with pytest.raises(ReplayError, match="rotated=False"):
        replay("streamingllm", **uniform(6), prompt_len=4, params={"budget": 3})


def test_a_float64_payload_is_computed_in_float64() -> None:
    tensors = {name: tensor.double() for name, tensor in uniform(6).items()}
    trace = replay("h2o", **tensors, prompt_len=4, params={"budget": 3, "interval": 1}, record=("score",))
    assert trace.output.dtype == torch.float64
    assert trace.recorded["score"][2][0].values.dtype == torch.float64


def test_dtype_casts_inputs_and_payload() -> None:
    q = torch.full((1, 4, 1, 4), 0.1)
    trace = replay("kivi", q=q, k=q, v=q, prompt_len=4, params={"block": 4, "residual": 4}, dtype=torch.float16, record=("kq.min",))
    assert trace.recorded["kq.min"][0][0].values.dtype == torch.float16


# ---- scores of rows that attention left out ------------------------------------------------------

NEWEST_ONLY = """
  state best[t, h]: f32 = 0
  on build_decode_selection { attend recent(2) }
  on after_decode_attention {
    let score[t, h] = max[i, g](logits[i, h, g, t])
    best[t, h] = score[t, h]
  }
  on finish_step when len > 100 { evict keep recent(1) then top[t](best[t, h]) upto 50 }
"""


def test_logits_are_minus_infinity_where_attention_did_not_look() -> None:
    tensors = from_logits({3: [[1.0, 2.0, 3.0, 4.0]]}, 4)
    trace = replay(spec(NEWEST_ONLY), **tensors, prompt_len=3, record=("score",))
    assert values(trace, "score", 1) == pytest.approx({0: -float("inf"), 1: -float("inf"), 2: 3.0, 3: 4.0})


def test_an_ensure_sees_the_logits_of_every_row() -> None:
    clause = '  ensure "no row left out scores higher" score[t, h] >= max[i, g](logits[i, h, g, t])'
    assert failures(NEWEST_ONLY + clause, tokens=4, prompt_len=3) == [("no row left out scores higher", 1)]


# ---- hooks that do not exist here ----------------------------------------------------------------

PROBE = """
  param exact: bool = true
  state worth[t, h]: f32 = 0
  on probe_attention when exact { worth[t, h] = max[i, g](probs[i, h, g, t]) }
  on finish_step when len > 4 { evict keep recent(1) then top[t](worth[t, h]) upto 4 }
"""


def test_a_probe_that_would_run_is_refused_with_its_line() -> None:
    with pytest.raises(Unsupported, match=r"probe_attention.*line 7"):
        replay(spec(PROBE), **uniform(6), prompt_len=5)


def test_a_probe_that_never_runs_is_no_reason_to_refuse() -> None:
    assert kept(replay(spec(PROBE), **uniform(6), prompt_len=5, params={"exact": False}), 1) == [0, 1, 2, 5]
