"""S6xx: the query's own row, states with writer and reader, the flow of shared state, zones."""

import pytest

from found import codes, diagnostics

SHARED = "state chosen: set[t] = all shared\n"


def attend(rows: str, items: str = "", before: str = "") -> list[str]:
    if rows == "open_page":
        items += "param page_size: tokens in {16, 32} = 16"
    return codes(f"{items}\non build_decode_selection {{ {before} attend {rows} }}")


@pytest.mark.parametrize(
    "rows",
    [
        "recent(1)",
        "all",
        "open_page",
        "sink(4) | recent(8)",
        "all - sink(4) | recent(1)",
        "recent(8) & all",
        "where(len > 64, recent(8), all)",
        "recent(4) then top[t](max[i, g](sum[c](Q[i, h, g, c] * K[t, h, c]))) upto 16",
        "blind sink(4)",
        "recent(where(len > 64, 8, max(1, len // 2)))",
        "all - top[t in all - recent(1)](max[i, g](sum[c](Q[i, h, g, c] * K[t, h, c])), 16)",
    ],
)
def test_a_read_set_with_the_own_row_is_accepted(rows: str) -> None:
    assert attend(rows) == []


@pytest.mark.parametrize(
    "rows",
    [
        "sink(4)",
        "recent(8) & sink(4)",
        "all - recent(1)",
        "where(len > 64, recent(8), sink(4))",
        "sink(4) then top[t](max[i, g](sum[c](Q[i, h, g, c] * K[t, h, c]))) upto 16",
        "top[t](max[i, g](sum[c](Q[i, h, g, c] * K[t, h, c])), 16)",
    ],
)
def test_a_read_set_that_may_miss_the_own_row_is_an_error(rows: str) -> None:
    assert attend(rows) == ["S601"]


def test_a_window_that_may_be_empty_does_not_hold_the_own_row() -> None:
    assert attend("recent(window)", "param window: tokens in 0.. = 8") == ["S601"]
    assert attend("recent(window)", "param window: tokens in 1.. = 8") == []


def test_the_zone_of_new_rows_holds_the_own_row_until_it_may_be_moved_out() -> None:
    zones = "zone hot\nzone cold at cpu"
    assert attend("hot", zones, "move hot - recent(4) to cold") == []
    assert attend("hot", zones, "move hot & sink(4) to cold") == ["S601"]
    assert attend("cold", zones, "move hot - recent(4) to cold") == ["S601"]


def test_a_let_is_looked_through_for_the_own_row() -> None:
    assert attend("mine", before="let mine = recent(2)") == []


def test_the_fix_of_a_missing_own_row_checks_clean() -> None:
    body = "on build_decode_selection { attend sink(4) }"
    (found,) = diagnostics(body)
    assert found.fixes[0].text == "recent(1) | sink(4)"
    assert codes(body.replace("sink(4)", found.fixes[0].text)) == []


def test_a_state_that_only_its_own_update_reads_has_no_reader() -> None:
    body = "state worst[t, h]: f32 = 0\non kv_write { worst[t, h] = max(worst[t, h], norm[c](K[t, h, c])) }"
    assert codes(body) == ["S603"]


def test_a_state_without_writer_and_reader_is_reported_twice_at_its_declaration() -> None:
    assert codes("state worst[t, h]: f32 = 0") == ["S602", "S603"]


def test_shared_state_is_written_before_it_is_read() -> None:
    body = f"""{SHARED}
      on after_decode_attention for layer in {{writers}} {{{{ chosen = top[t](max[i, h, g](probs[i, h, g, t]), 64) }}}}
      on build_decode_selection for layer not in {{writers}} {{{{ attend recent(1) | chosen }}}}
    """
    assert codes(body.format(writers="{0, 4}")) == []
    assert codes(body.format(writers="{1, 4}")) == ["S604"]


def test_the_actual_layers_are_those_of_the_model() -> None:
    body = f"""{SHARED}
      param first: layer_set = {{n_layers // 16}}
      on after_decode_attention for layer in first {{ chosen = top[t](max[i, h, g](probs[i, h, g, t]), 64) }}
      on build_decode_selection for layer not in first {{ attend recent(1) | chosen }}
    """
    assert codes(body) == []
    assert codes(body, {"n_layers": 8}) == []
    assert codes(body, {"n_layers": 32}) == ["S604"]


def test_a_writer_of_the_same_layer_counts_if_it_runs_earlier() -> None:
    write = "chosen = recent(8)"
    read = "on build_decode_selection { attend recent(1) | chosen }"
    assert codes(f"{SHARED} on kv_write {{ {write} }} {read}") == []
    assert codes(f"{SHARED} on after_decode_attention {{ {write} }} {read}") == ["S604"]


def test_shared_state_that_no_layer_writes_in_a_phase_keeps_its_initial_value() -> None:
    body = f"""{SHARED}
      on after_decode_attention for layer == 0 {{ chosen = recent(8) }}
      on build_prefill_selection {{ attend recent(1) | chosen }}
      on build_decode_selection for layer > 0 {{ attend recent(1) | chosen }}
    """
    assert codes(body) == []


STORES = """
  zone tail
  zone packed {{
    store kq[t, h, c]: int(4, along = c, block = 32) = K[t, h, c]
    decode K[t, h, c] = kq[t, h, c]
    {}
  }}
  on end_of_prompt, finish_step {{ move {} tail - recent(8) to packed }}
"""


def test_a_zone_decodes_the_parts_that_are_moved_in() -> None:
    assert codes(STORES.format("", "")) == ["S605"]
    assert codes(STORES.format("", "K of")) == []
    assert codes(STORES.format("store v[t, h, c]: model = V[t, h, c]\ndecode V[t, h, c] = v[t, h, c]", "")) == []


def test_a_zone_that_stores_codes_cannot_decode_a_part_from_itself() -> None:
    assert codes(STORES.format("decode V[t, h, c] = V[t, h, c]", "")) == ["S605"]


def test_all_zones_read_keys_by_one_rule_of_positions() -> None:
    zones = """
      zone a {{ decode K[t, h, c] = rope(K_raw[t, h, c], {}) }}
      zone b {{ decode K[t, h, c] = rope(K_raw[t, h, c], {}) }}
      on finish_step {{ move a - recent(8) to b }}
    """
    assert codes(zones.format("order(t)", "order(t)")) == []
    assert codes(zones.format("order(t)", "pos[t]")) == ["S606"]
    raw = "zone a\nzone b { decode K[t, h, c] = rope(K_raw[t, h, c], pos[t]) }"
    assert codes(raw + "on finish_step { move a - recent(8) to b }") == []
