"""Evictions from a zone that packs blocks along the token axis: whole blocks or nothing of it (S410)."""

import pytest
from found import codes

ZONES = """
  param block: int in {16, 32} = 16
  param budget: tokens in 1.. = 64
  zone tail
  zone packed {
    store kq[t, h, c]: int(4, along = t, block = block, zero = true) = K[t, h, c]
    store v[t, h, c]: model = V[t, h, c]
    decode K[t, h, c] = kq[t, h, c]
    decode V[t, h, c] = v[t, h, c]
  }
  on end_of_prompt { move oldest(max(0, rows(tail) - 8) // block * block, tail) to packed }
  on finish_step when len > budget { KEEP }
"""
WHOLE = (
    "evict keep packed | recent(8) then top[t in tail](sum[c](V[t, h, c]), 8)",
    "evict keep packed | recent(8) then top[t](sum[c](V[t, h, c]), 8)",
    "evict keep packed | sink(3) | recent(8)",
    "evict keep all - oldest(max(0, len - budget) // block * block)",
    "evict keep recent(len - max(0, len - budget) // block * block)",
    "evict keep oldest(block, packed) | tail",
    "evict keep sink(2 * block) | (all - oldest(4 * block))",
    "evict keep tail - oldest(4, tail)",
    "evict keep where(decoding, packed, packed - oldest(block, packed)) | tail",
)
BROKEN = (
    "evict keep recent(budget)",
    "evict keep sink(4) | recent(8)",
    "evict keep all - oldest(len - budget)",
    "evict keep all - oldest(8)",
    "evict keep recent(8) then top[t](sum[c](V[t, h, c]), 8)",
    "evict keep tail | top[t in packed](sum[c](V[t, h, c]), 8)",
    "evict keep packed - oldest(8, packed) | tail",
    "evict keep packed - recent(8) | tail",
    "evict keep recent(budget) | tail",
)


@pytest.mark.parametrize("keep", WHOLE)
def test_whole_blocks_and_whole_zones_are_clean(keep):
    assert not [code for code in codes(ZONES.replace("KEEP", keep)) if code.startswith("S")]


@pytest.mark.parametrize("keep", BROKEN)
def test_an_eviction_that_may_break_a_block_is_refused(keep):
    assert codes(ZONES.replace("KEEP", keep)) == ["S410"]


def test_a_zones_name_means_both_parts_so_it_says_little_where_they_move_apart():
    apart = ZONES.replace("move oldest", "move K of oldest").replace("KEEP", WHOLE[0])
    assert "S410" in codes(apart)
    assert "S410" not in codes(apart.replace(WHOLE[0], WHOLE[3]))


def test_blocks_along_channels_are_each_one_row():
    rows = ZONES.replace("along = t", "along = c").replace("KEEP", BROKEN[0])
    assert "S410" not in codes(rows)
