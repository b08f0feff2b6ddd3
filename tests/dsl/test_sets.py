"""S4xx: rankings fit their bounds, sets are as fine as rows are stored, blocks arrive whole."""

import pytest

from found import codes, diagnostics

SCORE = """
  param budget: tokens in 1.. = 1024
  state score[t, h]: f32 = 0
  on after_prefill_attention, after_decode_attention { score[t, h] += sum[i, g](probs[i, h, g, t]) }
"""
PACKED = """
  param block: int in {16, 32} = 32
  param residual: tokens in block.. = 128
  zone tail
  zone packed {
    store kq[t, h, c]: int(4, along = t, block = block) = K[t, h, c]
    store vq[t, h, c]: int(4, along = c, block = 32) = V[t, h, c]
    decode K[t, h, c] = kq[t, h, c]
    decode V[t, h, c] = vq[t, h, c]
  }
"""


def evict(keep: str, params: str = "") -> str:
    return f"{SCORE}\n{params}\non finish_step when len > budget {{ evict keep {keep} }}"


def move(statement: str) -> str:
    return f"{PACKED}\non end_of_prompt, finish_step {{ {statement} }}"


def test_a_window_whose_range_ends_at_the_budget_fits_it() -> None:
    params = "param window: tokens in 1..budget = min(32, budget)"
    assert codes(evict("recent(window) then top[t](score[t, h]) upto budget", params)) == []


def test_a_window_without_an_upper_end_does_not_fit_the_budget() -> None:
    params = "param window: tokens in 1.. = 32"
    assert codes(evict("recent(window) then top[t](score[t, h]) upto budget", params)) == ["S404"]


def test_two_sets_that_fit_alone_must_fit_together() -> None:
    params = "param window: tokens in 1..budget = min(32, budget)\nparam sinks: tokens in 0..budget = 0"
    assert codes(evict("sink(sinks) | recent(window) then top[t](score[t, h]) upto budget", params)) == ["S404"]
    assert codes(evict("sink(sinks) | recent(window) then top[t](score[t, h]) upto sinks + window + budget", params)) == []


def test_an_intersection_is_no_larger_than_its_bounded_side() -> None:
    assert codes(evict("all & recent(1) then top[t](score[t, h]) upto budget")) == []


def test_a_set_without_a_static_size_fits_no_bound() -> None:
    assert codes(evict("every(2) then top[t](score[t, h]) upto budget")) == ["S404"]


def test_each_form_of_a_where_must_fit() -> None:
    params = "param wide: bool = false"
    keep = "where(wide, recent({}), recent(1)) then top[t](score[t, h]) upto budget"
    assert codes(evict(keep.format("budget"), params)) == []
    assert codes(evict(keep.format("budget + 1"), params)) == ["S404"]


def test_a_joint_ranking_counts_the_protected_rows_of_every_head() -> None:
    assert codes(evict("recent(1) then top[t, h](score[t, h]) upto budget")) == ["S404"]
    assert codes(evict("recent(1) then top[t, h](score[t, h]) upto budget * kv_heads")) == []


def test_the_open_page_costs_one_page() -> None:
    body = """
      param page_size: tokens in {{16, 32}} = 16
      param most: pages in {low}.. = 4
      summary mid[p, h, c]: f32 = mean[t in p](K[t, h, c])
      on build_decode_selection {{
        attend {first} then top[p](max[i, g](sum[c](Q[i, h, g, c] * mid[p, h, c]))) upto most
      }}
    """
    assert codes(body.format(low=1, first="open_page")) == []
    assert codes(body.format(low=0, first="open_page")) == ["S404", "S405"]
    assert codes(body.format(low=1, first="recent(2)")) == ["S404"]
    assert codes(body.format(low=2, first="recent(2)")) == []


def test_a_ranking_needs_a_count_or_upto() -> None:
    assert codes(evict("recent(1) then top[t](score[t, h])")) == ["S406"]
    assert codes(evict("top[t](score[t, h])")) == ["S406"]
    assert codes(evict("recent(1) then top[t](score[t, h], budget)")) == []


@pytest.mark.parametrize("letter", ["g", "i"])
def test_eviction_is_per_kv_head_at_most(letter: str) -> None:
    other = {"g": "i in last(4)", "i": "g"}[letter]
    within = "" if letter == "g" else "let seen[t, h] = max[i in last(4), g](probs[i, h, g, t])\n"
    body = f"on end_of_prompt {{ {within} evict keep recent(1) then top[t](sum[{other}](probs[i, h, g, t])) upto 64 }}"
    assert "S402" in codes(body)


def test_attention_may_read_one_set_per_query_head() -> None:
    body = "on build_decode_selection { attend recent(1) then top[t](sum[c](Q[i, h, g, c] * K[t, h, c])) upto 64 }"
    assert codes(body) == []


def test_whole_blocks_of_the_oldest_rows_may_be_packed() -> None:
    assert codes(move("move oldest(max(0, rows(tail) - residual) // block * block, tail) to packed")) == []


def test_a_let_is_looked_through_for_the_multiple() -> None:
    statement = "let burst = residual // block * block\nmove K of oldest(rows(tail, K) // burst * burst, tail) to packed"
    assert codes(move(statement + "\nmove V of tail - recent(residual) to packed")) == []


def test_the_rest_of_a_division_is_no_whole_number_of_blocks() -> None:
    assert codes(move("move oldest(rows(tail) % residual, tail) to packed")) == ["S408"]


def test_only_parts_that_are_packed_along_tokens_must_come_in_blocks() -> None:
    assert codes(move("move K of oldest(residual // block * block, tail) to packed\nmove V of tail & every(2) to packed")) == []
    assert codes(move("move K of tail & every(residual) to packed\nmove V of tail to packed")) == ["S409"]


def test_the_message_of_a_misfit_repeats_the_words_of_the_author() -> None:
    (found,) = diagnostics(evict("recent( 2 * budget ) then top[t](score[t, h]) upto budget"))
    assert "`recent( 2 * budget )`" in found.message and "`upto budget`" in found.message
