"""S1xx: what a name may mean, where it may stand, and what an unknown one may have meant."""

import pytest
from found import codes, diagnostics

from sparsec.dsl import names

SCORE = """
  state score[t, h]: f32 = 0
  on after_prefill_attention, after_decode_attention { score[t, h] += sum[i, g](probs[i, h, g, t]) }
"""


def evicting(keep: str, when: str = "len > 64", before: str = "") -> str:
    return f"{SCORE}\n  on end_of_prompt, finish_step when {when} {{\n{before}\n evict keep {keep}\n }}"


GOOD = "recent(8) then top[t](score[t, h]) upto 64"


def test_an_unknown_name_is_reported_at_every_use_with_the_nearest_name_and_a_fix():
    found = diagnostics("param budget: tokens in 64.. = 128\n" + evicting(GOOD.replace("64", "bugdet"), "len > bugdet"))
    assert [one.code for one in found] == ["S101", "S101"]
    assert all(one.help == "did you mean `budget`?" and one.fixes[0].text == "budget" for one in found)


def test_an_unknown_name_silences_what_would_follow_from_it():
    body = evicting("recent(8) then top[t](worth[t, h]) upto 64", before="let worth[t, h] = score[t, h] * missing")
    assert codes(body) == ["S101"]
    assert codes(evicting("recent(8) then top[t](score[t, h]) upto missing - 3")) == ["S101"]


def test_a_function_and_a_value_may_share_a_name():
    assert codes("param recent: tokens in 1..64 = 8\n" + evicting("recent(recent) then top[t](score[t, h]) upto 64")) == []


@pytest.mark.parametrize("name", ["len", "K", "all", "true", "layer", "t"])
def test_a_value_name_of_the_language_cannot_be_declared(name):
    assert "S111" in codes(f"param {name}: int in 1.. = 3")


def test_a_name_is_declared_once_whatever_its_kind():
    assert codes("param score: int in 1..64 = 3\n" + evicting(GOOD)) [0] == "S110"


def test_a_letter_of_the_language_is_not_declared_again():
    assert "S110" in codes("domain latent[c] = 4")


def test_a_let_ends_with_its_block_and_begins_at_its_statement():
    assert codes(evicting(GOOD, before="when prefilling { let n = 3 } else { let m = n }")) .count("S113") == 1
    assert codes(evicting(GOOD, before="let n = n + 1")) == ["S507"]


def test_a_let_of_another_hook_is_not_visible_and_the_message_says_where_it_is():
    body = evicting(GOOD, before="let total = len + 1") + "\n on layer_end when total > 3 { }"
    (found,) = [one for one in diagnostics(body) if one.code == "S113"]
    assert "belongs to another hook" in found.message


def test_an_ensure_sees_the_lets_of_hooks():
    assert "S101" not in codes(evicting(GOOD, before="let total = len + 1") + '\n ensure "grows" total > len')


def test_a_param_reads_earlier_params_only():
    assert codes("param a: tokens in 1..b = 1\nparam b: tokens in 1.. = 1") == ["S112"]
    assert codes("param a: tokens in 1..a = 1") == ["S112"]


@pytest.mark.parametrize("fact", ["len", "layer", "steps", "prefilling", "chunk"])
def test_a_default_cannot_read_what_only_a_request_knows(fact):
    assert codes(f"param a: int in 0.. = where({fact} == {fact}, 1, 2)") == ["S119", "S119"]


def test_a_choice_is_compared_with_its_own_values_only():
    body = "param heads: choice in {each, joint} = each\n  param other: choice in {some} = some\n"
    assert codes(body + evicting(GOOD, "len > 64 and heads == each and other == some")) == []
    assert codes(body + evicting(GOOD, "len > 64 and heads == some and other == some")) == ["S115"]
    assert codes("param heads: choice in {each, joint} = eahc") == ["S115"]


def test_words_of_reductions_may_be_choice_values():
    assert codes("param r: choice in {mean, sum, max} = mean\n" + evicting(GOOD, "len > 64 and r != sum")) == []


def test_keywords_units_dtypes_tiers_zones_and_hooks_are_closed_lists():
    assert codes("param a: tokens_ in 1.. = 1") == ["S104"]
    assert "S105" in codes("state a[t]: f31 = 0")
    assert "S108" in codes("zone a\n zone b at gpuu\n on finish_step { move a - recent(9) to b }")
    assert "S107" in codes("zone a\n on finish_step { move a - recent(9) to b }")
    assert codes("on finish_steps { }") == ["S103"]
    assert codes("schedule { page_size = 16 cache_policy = mru }") == ["S116"]


def test_a_misspelt_keyword_is_reported_once_although_it_is_required():
    assert codes(evicting("recent(8) then top[t](maxpool[t](score[t, h], wdth = 3)) upto 64")) == ["S106"]


def test_the_vocabulary_has_one_domain_per_letter_and_known_letters_in_every_tensor():
    assert all(letter in names.LETTERS for tensor in names.TENSORS.values() for letter in tensor.letters)
    assert not set(names.TENSORS) & set(names.FACTS) and not set(names.SETS) & set(names.FACTS)


def test_the_grammar_and_the_vocabulary_know_the_same_reductions():
    from sparsec.dsl.parser import grammar

    words = next(term.pattern.value for term in grammar().terminals if term.name == "REDUCE")
    assert set(words.removesuffix(r")\b").removeprefix("(").split("|")) == set(names.REDUCTIONS)
