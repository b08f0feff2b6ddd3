"""Values for params: text forms, ranges that depend on other values, shares of the prompt, defaults, static values."""

import pytest
from pathlib import Path

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import check
from sparsec.dsl.evaluate import EvaluationError, evaluate
from sparsec.dsl.params import ParamError, ParamTable
from sparsec.dsl.parser import parse

MODEL = {"n_layers": 32, "kv_heads": 8, "head_dim": 64, "group": 4, "kv_width": 1024}
METHODS = sorted((Path(__file__).parents[2] / "methods").glob("*.sparse"))
SPEC = """sparse 1
method m {
  param budget: tokens in 8.. = 64
  param window: tokens in 1..budget = min(32, budget)
  param share: ratio in 0..1 = 0.5
  param width: int in {3, 5, 7} = 5
  param heads: choice in {each, joint} = each
  param smooth: bool = false
  param filters: layer_set = {0, n_layers // 4}
  state score[t, h]: f32 = 0
  on after_prefill_attention, after_decode_attention for layer not in filters {
    score[t, h] += sum[i](where(heads == each, mean[g](probs[i, h, g, t]), max[g](probs[i, h, g, t])))
  }
  on end_of_prompt, finish_step when len > budget {
    let worth[t, h] = where(smooth, maxpool[t](score[t, h], width = width), score[t, h])
    evict keep recent(window) then top[t](worth[t, h]) upto max(window, budget - floor(share * 8))
  }
}
"""


@pytest.fixture(scope="module")
def table() -> ParamTable:
    source = Source("m.sparse", SPEC)
    return ParamTable.of(check(parse(source), source))


def test_params_that_change_what_is_compiled_are_static(table):
    assert table.static_names == ("width", "heads", "smooth", "filters")
    assert table.dynamic_names == ("budget", "window", "share")


def test_defaults_follow_the_values_that_they_depend_on(table):
    assert table.resolve({}, MODEL)["window"] == 32
    assert table.resolve({"budget": "16"}, MODEL)["window"] == 16
    assert table.resolve({}, MODEL)["filters"] == frozenset({0, 8})


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("budget", "512", 512),
        ("budget", 512, 512),
        ("budget", 512.0, 512),
        ("share", "0.2", 0.2),
        ("share", 1, 1.0),
        ("smooth", "true", True),
        ("smooth", False, False),
        ("heads", "joint", "joint"),
        ("width", "7", 7),
        ("filters", "{0, 2}", frozenset({0, 2})),
        ("filters", "0,2", frozenset({0, 2})),
        ("filters", "3", frozenset({3})),
        ("filters", [1, 2], frozenset({1, 2})),
    ],
)
def test_text_and_python_values_are_read_by_unit(table, name, given, value):
    found = table.resolve({name: given}, MODEL)[name]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("budget", "7", "8.."),
        ("budget", "1.5", "whole number"),
        ("budget", "", "whole number"),
        ("budget", "-3", "8.."),
        ("budget", True, "whole number"),
        ("budget", "9" * 30, "whole number"),
        ("window", "65", "1..64"),
        ("share", "1.01", "0..1"),
        ("share", "nan", "number"),
        ("share", "25%", "only params in tokens"),
        ("width", "4", "3, 5, 7"),
        ("width", "25%", "only params in tokens"),
        ("heads", "jiont", "did you mean `joint`"),
        ("smooth", "yes", "true or false"),
        ("filters", "a,b", "layers"),
        ("filters", "32", "below 32"),
        ("filters", "-1", "layers"),
    ],
)
def test_a_wrong_value_is_refused_with_the_param_the_value_and_what_is_legal(table, name, given, says):
    with pytest.raises(ParamError, match=name) as caught:
        table.resolve({name: given}, MODEL)
    assert says in str(caught.value)
    assert caught.value.name == name


def test_an_unknown_param_is_refused_with_the_nearest_name(table):
    with pytest.raises(ParamError, match="did you mean `budget`"):
        table.resolve({"bugdet": 3}, MODEL)


def test_a_share_of_the_prompt_is_rounded_down_and_kept_above_the_lower_bound(table):
    assert table.resolve({"budget": "25%"}, MODEL, prompt_len=103)["budget"] == 25
    assert table.resolve({"budget": "25%"}, MODEL, prompt_len=103)["window"] == 25
    assert table.resolve({"budget": "1%"}, MODEL, prompt_len=103)["budget"] == 8
    assert table.resolve({"budget": "33.3%"}, MODEL, prompt_len=1000)["budget"] == 333
    with pytest.raises(ParamError, match="prompt of known length"):
        table.resolve({"budget": "25%"}, MODEL)


def test_a_given_value_is_checked_against_given_values_of_earlier_params(table):
    assert table.resolve({"window": 60, "budget": 60}, MODEL)["window"] == 60
    with pytest.raises(ParamError, match="1..20"):
        table.resolve({"window": 60, "budget": 20}, MODEL)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"budget": 0}, "`budget` = 0"), ({"budget": "x"}, "whole number"), ({"budget": 20, "window": "60"}, "1..20"),
        ({"bugdet": 3}, "did you mean"), ({"width": "30%"}, "share"),
    ],
)  # fmt: skip
def test_values_are_refused_before_a_request_runs_where_their_range_is_known(table, given, says):
    with pytest.raises(ParamError, match=says):
        table.check_given(given)


def test_what_only_a_request_or_a_model_decides_is_left_to_it(table):
    table.check_given({"budget": "25%", "window": 60})
    table.check_given({"filters": "0,99"})
    with pytest.raises(ParamError, match="layers below"):
        table.check_given({"filters": "0,99"}, MODEL)


def test_a_default_that_needs_a_model_says_so(table):
    with pytest.raises(ParamError, match="name a model"):
        table.resolve({}, None)


def test_static_values_keep_model_facts_symbolic(table):
    values = table.static_values({"heads": "joint", "budget": "25%"})
    assert (values["width"], values["heads"], values["smooth"]) == (5, "joint", False)
    assert isinstance(values["filters"], t.SetLiteral)
    assert "n_layers" in {node.name.text for node in t.walk(values["filters"]) if isinstance(node, t.Ref)}
    assert table.static_values({"filters": "2,1"})["filters"] == t.SetLiteral((t.Int(1), t.Int(2)))


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_every_shipped_method_has_values_for_small_and_large_models(path):
    source = Source(path.name, path.read_text(encoding="utf-8"))
    table = ParamTable.of(check(parse(source), source))
    for model in (MODEL, {**MODEL, "n_layers": 1, "kv_heads": 1}):
        assert table.resolve({}, model).keys() == set(table.names)


# ---- values of expressions -------------------------------------------------------------------------


def value(text: str, **env: object) -> object:
    (item,) = parse(Source("e", f"sparse 1\nmethod m {{ layers x = {text} }}")).method.items
    return evaluate(item.value, env)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 // 2", 3), ("-7 // 2", -4), ("7 % 4", 3), ("7 / 2", 3.5), ("round(2.5)", 2), ("round(3.5)", 4), ("floor(-0.5)", -1),
        ("ceil(0.2)", 1), ("pages(33)", 2), ("pages_for(33)", 3), ("tokens(3)", 48), ("max(1, 2, 3)", 3), ("levels(4)", 16),
        ("where(1 < 2, 5, 6)", 5), ("min({3, 1})", 1), ("{1, 2} | {3}", frozenset({1, 2, 3})), ("count[l in {1, 5}](1)", 2),
        ("all - {0}", frozenset({1, 2})), ("2 in {1, 2} and not 3 in {1, 2}", True), ("mode == fast implies 1 == 2", False),
    ],
)  # fmt: skip
def test_expressions_have_the_values_that_the_language_says(text, expected):
    assert value(text, page_size=16, n_layers=3, mode="fast") == expected


@pytest.mark.parametrize("text", ["1 // 0", "1 / 0", "len + 1", "levels(1000)", "exp(10000)", "sqrt(-1)", "recent(3)", "{0} + 1"])
def test_an_expression_without_a_value_says_why(text):
    with pytest.raises(EvaluationError):
        value(text)
