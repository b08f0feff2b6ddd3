"""S2xx: letters, arity, both sides of equations, binders, bases of sets, and the types that stages read."""

import pytest
from found import codes

from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import check, type_method
from sparsec.dsl.checked import Type
from sparsec.dsl.parser import parse


def in_hook(body: str, hook: str = "after_decode_attention") -> list[str]:
    """S2xx codes of statements in one hook."""
    return [code for code in codes(f"state score[t, h]: f32 = 0\n on {hook} {{\n{body}\n}}") if code.startswith("S2")]


def type_of_let(value: str, target: str = "w", before: str = "") -> Type:
    text = f"sparse 1\nmethod m {{ state score[t, h]: f32 = 0 on after_decode_attention {{ {before} let {target} = {value} }} }}"
    source = Source("m", text)
    file = parse(source)
    ctx = type_method(file, source)
    assert ctx.errors == ()
    return ctx.type_of(next(node for node in t.walk(file) if isinstance(node, t.Let) and node.target.name.text == "w").value)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("score[t, h] += sum[i](probs[i, h, g, t])", "S201"),
        ("score[t, h] = sum[i, g, h](probs[i, h, g, t])", "S202"),
        ("let w[t, h] = sum[h](score[t, h])", "S202"),
        ("let w[t + 1] = 2", "S203"),
        ("let w[t] = sum[p, h](score[t, h])", "S204"),
        ("let w[t] = max[h](score[t])", "S205"),
        ("let w[t, h] = score[h, t]", "S206"),
        ("let w[t] = cumsum[h](score[t, h])", "S206"),
        ("let w[h] = sum[t](score[t, h] - max[t](score[t, h]))", "S207"),
        ("let w[t, t] = score[t, h]", "S208"),
        ("let w[h] = sum[t in last(3)](score[t, h])", "S209"),
        ("let w[t, h] = where(prefilling, score[t, h], max[t](score[t, h]))", "S210"),
        ("let w[t, g] = max[h, i](probs[i, h, g, t])", "S211"),
        ("let w = recent(4) | last(4)", "S212"),
        ("let w[h] = sum[t in h](score[t, h])", "S212"),
        ("when score[t, h] > 0 { }", "S214"),
        ("let w[h] = top[t](score[t, h], pos[t])", "S214"),
    ],
)
def test_a_misused_letter_is_reported(statement, code):
    assert code in in_hook(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "score[t, h] = 0",
        "score[s, h] += sum[i, g](probs[i, h, g, s])",
        "let w[t, h] = score[t, h] / sum[t](score[t, h])",
        "let w[t, h] = where(prefilling, score[t, h], max[h](score[t, h]))",
        "let w[h] = top[t, h](score[t, h], 8)\n let n[h] = count[t in w[h]](1)",
        "let w[t, h] = softmax[t](maxpool[t](score[t, h], width = 3))",
        "let w[l] = apportion[l](100 - l, 50 * n_layers)\n let z = w[layer]",
    ],
)
def test_a_sound_use_of_letters_passes(statement):
    assert in_hook(statement) == []


def test_an_ensure_binds_free_letters_itself():
    base = "state score[t, h]: f32 = 0\n on after_decode_attention { score[t, h] += sum[i, g](probs[i, h, g, t]) }\n"
    assert "S215" in codes(base + 'ensure "x" score[t, h] <= max[h](score[t, h])')
    assert "S215" not in codes(base + 'ensure "x" score[t, h] >= 0')


def test_along_is_the_token_or_the_last_index():
    zone = "zone a\n zone b {{ store q[t, h, c]: int(4, along = {}, block = 32) = K[t, h, c] decode K[t, h, c] = q[t, h, c] }}"
    assert "S213" in codes(zone.format("h")) and "S213" in codes(zone.format("p"))
    assert "S213" not in codes(zone.format("t")) and "S213" not in codes(zone.format("c"))


def test_types_carry_free_letters_bases_units_and_staticness():
    assert type_of_let("max[h](score[t, h])", "w[t]") == Type("number", frozenset("t"))
    assert type_of_let("top[t](score[t, h], 4)", "w[h]") == Type("set", frozenset("h"), ("t",))
    assert type_of_let("top[t, h](score[t, h], 4)") == Type("set", frozenset(), ("t", "h"))
    assert type_of_let("count[t in recent(4)](1)") == Type("number", unit="tokens")
    assert type_of_let("n_layers // 2") == Type("number", unit="int", static=True)
    assert type_of_let("len / 2") == Type("number", unit="ratio")
    assert type_of_let("all - recent(4)").base == ("t",)


def test_all_takes_the_base_that_its_surroundings_ask_for():
    text = "sparse 1\nmethod m { state live[h]: set[c] = all on layer_end { let w[h] = sum[t, c in all](K[t, h, c]) } }"
    source = Source("m", text)
    file = parse(source)
    ctx = type_method(file, source)
    sets = [node for node in t.walk(file) if isinstance(node, t.Ref) and node.name.text == "all"]
    assert [ctx.type_of(node).base for node in sets] == [("c",), ("c",)]


def test_a_specialised_tree_may_have_lost_letters():
    text = "sparse 1\nmethod m { state score[t, h]: f32 = 0 on after_decode_attention { score[t, h] += sum[i, g, h](probs[i, h, g, t]) } " \
           "on end_of_prompt when len > 9 { evict keep recent(1) then top[t](score[t, h]) upto 9 } }"  # fmt: skip
    source = Source("m", text)
    assert [one.code for one in type_method(parse(source), source).errors] == ["S202"]
    check(parse(source), source, strict=False)
