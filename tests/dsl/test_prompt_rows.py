"""`prompt_rows` has a value once end_of_prompt has run: reads that may come earlier are S513, all others have one value on every target."""

import pytest
from found import codes

EVICT = "{ evict keep recent(4) }"


@pytest.mark.parametrize(
    "item",
    [
        f"on finish_step when decoding and len > prompt_rows {EVICT}",
        f"on finish_step when len > prompt_rows and decoding {EVICT}",
        f"on finish_step when prompt_done and len > prompt_rows {EVICT}",
        f"on finish_step when not prefilling and len > prompt_rows {EVICT}",
        f"on finish_step when not (prefilling or len <= prompt_rows) {EVICT}",
        f"on finish_step when steps > 0 and len > prompt_rows {EVICT}",
        f"on end_of_prompt, finish_step when where(decoding, len > prompt_rows, len > 8) {EVICT}",
        f"on finish_step {{ when prefilling {{ let a = 1 }} else {{ when len > prompt_rows {EVICT} }} }}",
        "on build_decode_selection when len > prompt_rows { attend recent(4) }",
        'ensure "a" decoding implies len >= prompt_rows',
        'ensure "a" prefilling or len >= prompt_rows',
        'ensure "a" prompt_done implies len >= prompt_rows',
    ],
)
def test_reads_after_the_prompt_are_clean(item):
    assert not [code for code in codes(item) if code.startswith("S")]


@pytest.mark.parametrize(
    "item",
    [
        f"on finish_step when len > prompt_rows {EVICT}",
        f"on finish_step when decoding or len > prompt_rows {EVICT}",
        f"on end_of_prompt, finish_step when prompt_done and len > prompt_rows {EVICT}",
        f"on end_of_prompt when len > prompt_rows {EVICT}",
        f"on finish_step {{ let more = len - prompt_rows when decoding and more > 4 {EVICT} }}",
        f"on finish_step {{ when decoding {{ let a = 1 }} else {{ when len > prompt_rows {EVICT} }} }}",
        "on build_prefill_selection when prompt_done and len > prompt_rows { attend recent(4) }",
        'ensure "a" len >= prompt_rows',
        'ensure "a" prompt_rows > 3 implies decoding',
    ],
)
def test_reads_that_may_come_before_its_end_are_refused(item):
    assert "S513" in codes(item)
