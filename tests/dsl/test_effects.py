"""S5xx: the lifecycle table says what a hook may do and read; one update of a state per path."""

import pytest

from found import codes
from sparsec.dsl.names import HOOKS

STATE = "state score[t, h]: f32 = 0\nstate shared_score[t, h]: f32 = 0 shared\n"
EVICT = "on finish_step { evict keep recent(1) then top[t](score[t, h]) upto 64 }\n"
ACTIONS = {
    "state": "score[t, h] = norm[c](K[t, h, c])",
    "shared": "shared_score[t, h] = norm[c](K[t, h, c])",
    "move": "move first - recent(4) to second",
    "evict": "evict keep recent(64)",
    "attend": "attend recent(4)",
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_hook_may_do_what_the_table_says_and_nothing_else(hook: str, action: str) -> None:
    body = f"{STATE}\nzone first\nzone second\non {hook} {{ {ACTIONS[action]} }}"
    may = HOOKS[hook].may
    allowed = action in may or (action == "shared" and "state" in may and HOOKS[hook].per == "layer")
    found = {code for code in codes(body) if code in ("S501", "S510", "S511")}
    assert (not found) == allowed, found


@pytest.mark.parametrize("hook", HOOKS)
def test_probabilities_are_known_after_attention_only(hook: str) -> None:
    body = f"on {hook} {{ let seen[t, h] = sum[i in last(4), g](probs[i, h, g, t]) }}"
    known = "probs" in HOOKS[hook].reads | HOOKS[hook].window
    assert ("S502" in codes(body)) == (not known)
    assert ("S512" in codes(body)) == (not HOOKS[hook].window)


def test_after_the_step_queries_are_known_in_a_window_only() -> None:
    body = "on end_of_prompt {{ evict keep recent(1) then top[t]({}) upto 64 }}"
    assert codes(body.format("sum[i, g](probs[i, h, g, t])")) == ["S503"]
    assert codes(body.format("sum[i in last(4), g](probs[i, h, g, t])")) == []
    assert codes(body.format("max[g](sum[i in last(4)](mean[c](Q[i, h, g, c]) * mean[c](K[t, h, c])))")) == []


def test_a_binding_of_two_hooks_may_do_what_both_allow() -> None:
    body = f"{STATE}{EVICT}on after_decode_attention, end_of_prompt {{ score[t, h] = max[i, g](probs[i, h, g, t]) }}"
    assert "S503" in codes(body)


UPDATE = "score[t, h] = norm[c](K[t, h, c])"


@pytest.mark.parametrize(
    ("statements", "twice"),
    [
        (f"{UPDATE} {UPDATE}", True),
        (f"when len > 4 {{ {UPDATE} }} else {{ {UPDATE} }}", False),
        (f"when len > 4 {{ {UPDATE} }} {UPDATE}", True),
        (f"when len > 4 {{ {UPDATE} }} when not len > 4 {{ {UPDATE} }}", False),
        (f"when len > 4 {{ {UPDATE} }} when len <= 4 {{ {UPDATE} }}", False),
        (f"when len > 4 {{ {UPDATE} }} when len <= 5 {{ {UPDATE} }}", True),
        (f"when prefilling {{ {UPDATE} }} when decoding {{ {UPDATE} }}", False),
    ],
)
def test_a_state_is_updated_once_on_each_path(statements: str, twice: bool) -> None:
    body = f"state score[t, h]: f32 = 0\n{EVICT}on kv_write {{ {statements} }}"
    assert codes(body) == (["S504"] if twice else [])


def test_two_bindings_of_one_hook_share_its_updates() -> None:
    state = f"state score[t, h]: f32 = 0\n{EVICT}"
    assert codes(f"{state} on kv_write {{ {UPDATE} }} on kv_write {{ {UPDATE} }}") == ["S504"]
    lower = f"on kv_write for layer in {{0, 1}} {{ {UPDATE} }}"
    upper = f"on kv_write for layer not in {{0, 1}} {{ {UPDATE} }}"
    assert codes(f"{state} {lower} {upper}") == []


def test_eviction_runs_once_on_each_path() -> None:
    one = "evict keep recent(8)"
    assert codes(f"on finish_step {{ {one} {one} }}") == ["S508"]
    assert codes(f"on finish_step {{ when len > 9 {{ {one} }} else {{ {one} }} }}") == []
    assert codes(f"on end_of_prompt {{ {one} }} on finish_step {{ {one} }}") == []


def test_a_condition_that_the_first_eviction_changes_excludes_nothing() -> None:
    assert codes("on finish_step { when len > 9 { evict keep recent(4) } when len <= 9 { evict keep recent(3) } }") == ["S508"]
    assert codes("on finish_step { when steps > 9 { evict keep recent(4) } when steps <= 9 { evict keep recent(3) } }") == []


def test_a_let_cannot_read_itself() -> None:
    assert "S507" in codes("on finish_step { let f[t] = f[t] + 1 evict keep recent(1) then top[t](f[t]) upto 4 }")


def test_page_state_goes_with_moves_of_whole_pages_only() -> None:
    body = """
      param page_size: tokens in {{16, 32}} = 16
      state heat[p, h]: f32 = 0
      zone hot
      zone cold at cpu
      on after_decode_attention {{ heat[p, h] = heat[p, h] + sum[i, g, t in p](probs[i, h, g, t]) }}
      on finish_step {{ move {} to cold }}
      on build_decode_selection {{ attend open_page then top[p](heat[p, h]) upto 8 }}
    """
    assert codes(body.format("hot - recent(64)")) == ["S509"]
    assert codes(body.format("bottom[p](heat[p, h], 2)")) == []


def test_hostile_repetition_stays_fast() -> None:
    assert set(codes("on finish_step { " + "evict keep recent(8) " * 2000 + "}")) == {"S508"}
