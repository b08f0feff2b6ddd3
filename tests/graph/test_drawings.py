"""The graph as svg, dot and mermaid: complete, well-formed, and legible."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from sparsec.dsl.source import shipped_methods
from sparsec.graph.build import build_graph
from sparsec.graph.dot import to_dot
from sparsec.graph.mermaid import to_mermaid
from sparsec.graph.picture import picture
from sparsec.graph.svg import CHAR, WIDTH, to_svg

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "{ on end_of_prompt when len > 8 and n_layers < 90 { let most = 8 evict keep recent(most) | sink(2) } }"


def drawn(compilation):
    return picture(build_graph(compilation.special))


def boxes(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """(x, y, width, height) of every box; the first rectangle is the background."""
    return [tuple(float(rect.get(side)) for side in ("x", "y", "width", "height")) for rect in root.findall(f"{SVG}rect")[1:]]


@pytest.mark.parametrize("name", shipped_methods())
def test_no_two_boxes_overlap_and_all_lie_on_the_page(compiled, name):
    root = ElementTree.fromstring(to_svg(drawn(compiled(name))))
    found = boxes(root)
    height = float(root.get("height"))
    for index, (x, y, width, high) in enumerate(found):
        assert 0 <= x and x + width <= WIDTH and y + high <= height
        for other_x, other_y, other_width, other_high in found[:index]:
            apart = x >= other_x + other_width or other_x >= x + width or y >= other_y + other_high or other_y >= y + high
            assert apart, f"boxes at {x},{y} and {other_x},{other_y} overlap"


@pytest.mark.parametrize("name", shipped_methods())
def test_every_line_of_text_fits_the_box_that_it_starts_in(compiled, name):
    root = ElementTree.fromstring(to_svg(drawn(compiled(name))))
    found = boxes(root)
    for text in root.findall(f"{SVG}text"):
        x, y = float(text.get("x")), float(text.get("y"))
        for left, top, width, height in found:
            if left <= x < left + width and top <= y <= top + height and text.get("text-anchor") is None:
                assert x + len(text.text or "") * CHAR <= left + width + 1, text.text


def test_a_drawing_names_hooks_lines_and_what_is_read_and_written(compiled):
    text = to_svg(drawn(compiled("h2o")))
    for word in ("after_decode_attention", "end_of_prompt", "score[t, h]", "outside the CUDA graph", ">reads<", ">writes<"):
        assert word in text


def test_a_computed_summary_is_linked_to_its_zone(compiled):
    pic = drawn(compiled("quest"))
    assert {(link.source, link.target) for link in pic.links if link.kind == "derives"} == {
        ("zone:main", "summary:kmin"), ("zone:main", "summary:kmax"),
    }  # fmt: skip


def test_marks_of_the_language_are_escaped(compiled):
    pic = drawn(compiled(HOSTILE))
    ElementTree.fromstring(to_svg(pic))
    labels = re.findall(r'\["(.*?)"\]', to_mermaid(pic))
    assert labels and not any(mark in label.replace("<br/>", "") for label in labels for mark in '<>|"')


def test_dot_strings_are_closed_and_every_edge_joins_declared_nodes(compiled):
    text = to_dot(drawn(compiled("kivi")))
    assert all(line.count('"') % 2 == 0 for line in text.split("\n"))
    declared = set(re.findall(r'^  ("[^"]+") \[', text, re.MULTILINE))
    joined = {end for pair in re.findall(r'("[^"]+") -> ("[^"]+")', text) for end in pair}
    assert joined and joined <= declared
