"""Parse errors in words: what stood there, and what could have stood there instead.

Works from the set of terminals that the parser would have taken; knows nothing of the parser's states.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from lark import Token

from sparsec.diagnostics import Diagnostic, Fix
from sparsec.dsl.comments import CLOSING, OPENING, Piece
from sparsec.dsl.limits import span_at, token_span
from sparsec.dsl.tree import Span

DECLARATIONS = frozenset("CITE DOMAIN ENSURE INVARIANT LAYERS ON PARAM SCHEDULE STATE SUMMARY WEIGHT ZONE".split())
STATEMENTS = frozenset("LET EVICT MOVE ATTEND BLEND WHEN".split())
_VALUES = frozenset("FLOAT INT LBRACE LPAR MINUS NAME REDUCE".split())
_OPERATORS = frozenset("AMPERSAND AND CMP IMPLIES IN MINUS NOT OR PERCENT PLUS SLASH STAR VBAR __ANON_1".split())
_BRACKETS = frozenset(("LPAR", "LSQB"))
_WORDS = {"NAME": "a name", "INT": "a whole number", "FLOAT": "a number", "STRING": 'a text in "quotes"', "REDUCE": "a reduction",
          "CMP": "a comparison", "$END": "the end of the file"}
_SYMBOLS = {"AMPERSAND": "&", "COLON": ":", "COMMA": ",", "EQUAL": "=", "LBRACE": "{", "LPAR": "(", "LSQB": "[", "MINUS": "-", "PERCENT": "%",
            "PLUS": "+", "PLUS_EQ": "+=", "RBRACE": "}", "RPAR": ")", "RSQB": "]", "SLASH": "/", "STAR": "*", "VBAR": "|", "__ANON_0": "..",
            "__ANON_1": "//"}
_LOOPS = "the language has no loops: an expression over index letters, such as `sum[t](score[t, h])`, covers all of them at once"
_FOREIGN = {
    "while": _LOOPS, "loop": _LOOPS, "repeat": _LOOPS, "foreach": _LOOPS,
    "if": "write `when CONDITION { ... }`; inside an expression `where(CONDITION, a, b)`",
    "elif": "write `else { when CONDITION { ... } }`",
    "def": "the language has no functions: name a value with `let NAME = ...`",
    "function": "the language has no functions: name a value with `let NAME = ...`",
    "fn": "the language has no functions: name a value with `let NAME = ...`",
    "return": "a hook returns nothing: write what it does, `evict keep ...` or `attend ...`",
    "import": "a spec reads nothing but its own file",
    "var": "write `let NAME = ...`", "const": "write `let NAME = ...`",
}  # fmt: skip
_CHARACTERS = {
    "!": "write `not`, or `!=` to compare", ";": "remove it: a statement ends where the next one starts",
    "'": 'a text stands in double quotes: "..."', "^": "the language has no powers: write the product", "@": "remove it",
    "\u201c": 'a text stands in straight double quotes: "..."', "?": "write `where(CONDITION, a, b)`", ".": "a number has digits on both sides of its point: `0.5`, `1.0`",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where parsing stopped: what stands there, what would fit, the two pieces before it and the brackets open there."""

    text: str
    token: Token
    accepts: Set[str]
    before: tuple[Piece, ...]
    open: tuple[Piece, ...]

    @property
    def span(self) -> Span:
        if self.token.type != "$END":
            return token_span(self.token)
        end = len(self.text.rstrip())
        return span_at(self.text, end, end)

    @property
    def found(self) -> str:
        return "the end of the file" if self.token.type == "$END" else f"`{self.token}`"

    @property
    def last(self) -> str:
        return self.before[-1].text if self.before else ""


def describe(place: Place) -> Diagnostic:
    """The most telling diagnostic for the place."""
    for rule in _RULES:
        found = rule(place)
        if found is not None:
            return found
    return Diagnostic("S001", f"{place.found} does not fit here", place.span, "expected " + phrase(place.accepts))


def describe_character(text: str, start: int) -> Diagnostic:
    """S004 or S005: the text at this offset is the beginning of no word of the language."""
    char = text[start]
    span = span_at(text, start, start + 1)
    if char == '"':
        line = text.find("\n", start)
        span = span_at(text, start, line if line >= 0 else len(text))
        return Diagnostic("S005", "this text is not closed", span, 'end it with `"` on the line where it starts')
    shown = f"`{char}`" if char.isprintable() else f"the character U+{ord(char):04X}"
    help_text = _CHARACTERS.get(char, "remove it, or put it into a # comment")
    return Diagnostic("S004", f"{shown} is not part of the language", span, help_text)


def wrong_version(version: int | str, supported: int, span: Span) -> Diagnostic:
    message = f"this compiler reads language version {supported}, not {version}"
    return Diagnostic("S003", message, span, f"write `sparse {supported}`", (Fix(span, f"sparse {supported}"),))


def phrase(accepts: Set[str]) -> str:
    """The accepted terminals in groups: "an operator, a declaration or `}`"."""
    groups = [
        ("an expression", _VALUES, _VALUES <= accepts),
        ("an operator", _OPERATORS | _BRACKETS, "PLUS" in accepts),
        ("a statement", STATEMENTS | {"NAME"}, STATEMENTS <= accepts),
        ("a declaration", DECLARATIONS, DECLARATIONS <= accepts),
    ]
    words, covered = [], set()
    for word, members, applies in groups:
        if applies:
            words.append(word)
            covered |= members
    covered |= {"NOT"} if "an expression" in words else set()
    single = sorted({_word(name) for name in accepts - covered})
    return _listed([one for one in single if one != "`}`"] + words + [one for one in single if one == "`}`"])


def _word(terminal: str) -> str:
    if terminal in _WORDS:
        return _WORDS[terminal]
    return f"`{_SYMBOLS.get(terminal, terminal.lower())}`"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _at(piece: Piece, text: str) -> str:
    span = span_at(text, piece.start, piece.end)
    return f"the `{piece.text}` of line {span.line}, column {span.column}"


# ---- special cases, the most telling first ---------------------------------------------------


def _first_line(place: Place) -> Diagnostic | None:
    if place.accepts != {"SPARSE"}:
        return None
    fix = Fix(span_at(place.text, 0, 0), "sparse 1\n\n")
    return Diagnostic("S003", "a spec starts with the version of the language", place.span, "make `sparse 1` its first line", (fix,))


def _foreign_word(place: Place) -> Diagnostic | None:
    """A loop, a branch or a function as other languages write them."""
    if str(place.token) == "for" and place.accepts >= STATEMENTS:
        return Diagnostic("S007", "`for` is no statement", place.span, f"{_LOOPS}; `for` picks the layers of a hook: `on HOOK for layer in ...`")
    if place.last == "else" and str(place.token) in ("when", "if"):
        return Diagnostic("S007", "`else` takes a block of its own", place.span, "write `else { when CONDITION { ... } }`")
    words = [piece for piece in place.before[-1:] if piece.kind == "word"]
    words += [Piece("word", str(place.token), place.token.start_pos)] if place.token.type == "NAME" else []
    for piece in words:
        if piece.text in _FOREIGN:
            span = span_at(place.text, piece.start, piece.end)
            return Diagnostic("S007", f"the language has no `{piece.text}`", span, _FOREIGN[piece.text])
    return None


def _unclosed(place: Place) -> Diagnostic | None:
    """A bracket that is still open where the file ends, where another kind closes, or where a declaration starts."""
    if not place.open:
        return None
    inner = place.open[-1]
    if place.token.type == "$END":
        reason = "the file ends here"
    elif OPENING.get(str(place.token), inner.text) in {piece.text for piece in place.open[:-1]} - {inner.text}:
        reason = f"`{place.token}` stands here"
    elif place.token.type in DECLARATIONS and len(place.open) > 1:
        reason = f"`{place.token}` starts a declaration"
    else:
        return None
    message = f"{reason}, but {_at(inner, place.text)} is still open"
    return Diagnostic("S005", message, place.span, f"close it with `{CLOSING[inner.text]}`")


def _stray_closing(place: Place) -> Diagnostic | None:
    if str(place.token) not in OPENING or (place.open and place.open[-1].text == OPENING[str(place.token)]):
        return None
    return Diagnostic("S005", f"`{place.token}` closes nothing", place.span, f"remove it, or open it with `{OPENING[str(place.token)]}`")


def _second_method(place: Place) -> Diagnostic | None:
    if place.accepts != {"$END"}:
        return None
    return Diagnostic("S001", f"{place.found} stands behind the end of the method", place.span, "one file holds one method; move it inside its braces")


def _comparison(place: Place) -> Diagnostic | None:
    """`=` for `==` and the reverse; a chain of comparisons; operators of other languages."""
    found, accepts = str(place.token), place.accepts
    if found == "==" and "EQUAL" in accepts:
        return Diagnostic("S001", "`==` compares; here a value is defined", place.span, "write `=`", (Fix(place.span, "="),))
    if found == "=" and "CMP" in accepts:
        return Diagnostic("S001", "`=` defines; here values are compared", place.span, "write `==`", (Fix(place.span, "=="),))
    if place.token.type == "CMP" and "PLUS" in accepts:
        return Diagnostic("S001", f"comparisons do not chain: `{found}` follows another one", place.span, "join two with `and`: `a < b and b < c`")
    if found == place.last and found in ("&", "|"):
        word = {"&": "and", "|": "or"}[found]
        return Diagnostic("S001", f"`{found}{found}` is not part of the language", place.span, f"write `{word}` between conditions, `{found}` between sets")
    if found == place.last == "*":
        return Diagnostic("S001", "the language has no powers", place.span, "write the product")
    return None


def _reserved(place: Place) -> Diagnostic | None:
    """A word of the grammar where a name is wanted."""
    word = str(place.token)
    if "NAME" not in place.accepts or not word.isidentifier() or place.token.type == "NAME":
        return None
    if place.token.type in DECLARATIONS | STATEMENTS and place.last not in ("let", "on", "param", "zone", "state", "summary", "weight", "domain"):
        return None
    kind = "the name of a reduction" if place.token.type == "REDUCE" else "a reserved word"
    expected = phrase(place.accepts)
    more = "" if expected == "a name" else f"; expected {expected}"
    return Diagnostic("S006", f"`{word}` is {kind} and cannot be a name here", place.span, f"choose another name, such as `my_{word}`{more}")


def _item_in_wrong_block(place: Place) -> Diagnostic | None:
    """A statement among declarations, or a declaration among statements."""
    if place.token.type in STATEMENTS and place.accepts >= DECLARATIONS:
        return Diagnostic("S001", f"`{place.token}` is a statement and stands outside of a hook", place.span, "put it into a hook: `on HOOK { ... }`")
    return None


_RULES: tuple[Callable[[Place], Diagnostic | None], ...] = (
    _first_line,
    _foreign_word,
    _unclosed,
    _stray_closing,
    _second_method,
    _comparison,
    _item_in_wrong_block,
    _reserved,
)
