"""The built-in document: a town guide with a fact hidden in its first half, and the question that asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Document:
    """`text` holds the fact; `answer` is the word that a right reply contains; `place` is where it stands, 0 to 1."""

    text: str
    fact: str
    question: str
    answer: str
    place: float

    @property
    def prompt(self) -> str:
        return f"{self.text}\n\n{self.question}"


FACT = "The lifeboat of Ellery is painted purple."
QUESTION = "What colour is the lifeboat of Ellery painted?"
ANSWER = "purple"


def built_in(fact: str = FACT, question: str = QUESTION, answer: str = ANSWER, paragraph: int | None = None) -> Document:
    """The document with `fact` as a paragraph of its own, in its usual place or before the given paragraph."""
    paragraphs = files("sparsec.data").joinpath("document.txt").read_text(encoding="utf-8").strip().split("\n\n")
    usual = paragraphs.index("{fact}")
    paragraphs.remove("{fact}")
    paragraphs.insert(usual if paragraph is None else paragraph, fact)
    text = "\n\n".join(paragraphs)
    return Document(text, fact, question, answer, text.index(fact) / len(text))
