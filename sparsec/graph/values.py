"""Values of params for the commands: what `dsl/params.py` resolves, with its errors as errors of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from sparsec.dsl.checked import Checked
from sparsec.dsl.params import Given, ParamError, ParamTable, Value
from sparsec.dsl.specialise import StaticValue
from sparsec.failures import CommandError

Result = TypeVar("Result")


def resolve(
    checked: Checked, given: Mapping[str, Given], model: Mapping[str, int | float], prompt_len: int | None = None
) -> dict[str, Value]:
    """Every param of the unspecialised method, defaults included."""
    return _or_command_error(lambda: ParamTable.of(checked).resolve(given, model, prompt_len))


def static_values(checked: Checked, given: Mapping[str, Given]) -> dict[str, StaticValue]:
    """Values to specialise with. A default that depends on the model stays an expression: one artifact serves every model."""
    return _or_command_error(lambda: ParamTable.of(checked).static_values(given))


def refuse_wrong(checked: Checked, given: Mapping[str, Given], model: Mapping[str, int | float] | None = None) -> None:
    """A CommandError for a param that the method does not have, and for a value that no request could be given."""
    _or_command_error(lambda: ParamTable.of(checked).check_given(given, model))


def _or_command_error(action: Callable[[], Result]) -> Result:
    try:
        return action()
    except ParamError as error:
        raise CommandError(str(error), exit_code=2) from error
