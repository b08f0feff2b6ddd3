"""Reading one value that a user gave for a param: text from a command line, or a Python value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from sparsec.dsl import scopes
from sparsec.dsl.evaluate import Value

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE][+-]?\d{1,3})?")
_SHARE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*%")


class ParamError(ValueError):
    """A value that a param cannot have: `name`, the `given` value (None for a default) and what is `legal`."""

    def __init__(self, name: str, given: object, legal: str, reason: str | None = None) -> None:
        self.name, self.given, self.legal = name, given, legal
        if reason is not None and reason.startswith("unknown"):
            message = f"{reason} `{name}`: {legal}"
        else:
            value = "" if given is None else f" = {given}"
            message = f"param `{name}`{value}: {reason + '; ' if reason else ''}it must be {legal}"
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Share:
    """`25%`: a part of the prompt, which has no value before the prompt is known."""

    part: Fraction


def read(name: str, unit: str, choices: tuple[str, ...], given: object, legal: str) -> Value | Share:
    """The value in the type of its unit. Raises ParamError where it is not of the unit; ranges are judged elsewhere."""
    text = given.strip() if isinstance(given, str) else None
    if unit == "choice":
        return _choice(name, choices, text, given, legal)
    if unit == "bool":
        return _bool(name, text, given, legal)
    if unit == "layer_set":
        return _layers(name, text, given, legal)
    if text is not None and (share := _SHARE.fullmatch(text)):
        if unit != "tokens":
            raise ParamError(name, given, f"{legal}; only params in tokens can be a share of the prompt")
        return Share(Fraction(share.group(1)) / 100)
    return _ratio(name, text, given, legal) if unit == "ratio" else _whole(name, text, given, legal)


def _choice(name: str, choices: tuple[str, ...], text: str | None, given: object, legal: str) -> str:
    if text in choices:
        return text
    near = scopes.nearest(text, frozenset(choices)) if text else None
    raise ParamError(name, given, f"{legal} (did you mean `{near}`?)" if near else legal)


def _bool(name: str, text: str | None, given: object, legal: str) -> bool:
    if isinstance(given, bool):
        return given
    if text is not None and text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ParamError(name, given, legal)


def _whole(name: str, text: str | None, given: object, legal: str) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, float) and given.is_integer():
        return int(given)
    if text is not None and _INTEGER.fullmatch(text):
        return int(text)
    raise ParamError(name, given, f"a whole number: {legal}")


def _ratio(name: str, text: str | None, given: object, legal: str) -> float:
    if isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given):
        return float(given)
    if text is not None and _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    raise ParamError(name, given, f"a number: {legal}")


def _layers(name: str, text: str | None, given: object, legal: str) -> frozenset[int]:
    items: list[object]
    if text is not None:
        bare = text[1:-1] if text.startswith("{") and text.endswith("}") else text
        items = [part.strip() for part in bare.split(",")]
    elif isinstance(given, int) and not isinstance(given, bool):
        items = [given]
    elif isinstance(given, Iterable):
        items = list(given)
    else:
        items = []
    layers = [_layer(item) for item in items]
    if not layers or None in layers:
        raise ParamError(name, given, legal)
    return frozenset(layer for layer in layers if layer is not None)


def _layer(item: object) -> int | None:
    if isinstance(item, str):
        return int(item) if _INTEGER.fullmatch(item) and not item.startswith("-") else None
    return item if isinstance(item, int) and not isinstance(item, bool) and item >= 0 else None
