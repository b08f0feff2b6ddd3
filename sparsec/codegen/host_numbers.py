"""Numbers that the host knows, as Python text in a generated manager: amounts of rows and tokens that kernels are told."""

from __future__ import annotations

from collections.abc import Mapping

from sparsec.codegen.plan import Op

_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//"}
_CALLS = {"greatest": "max", "least": "min"}


def host_number(op: Op, params: str, known: Mapping[str, str]) -> str | None:
    """params: the text of the params by name; known: the texts of other names, such as len. None where the number is made of anything else."""
    if op.name == "param":
        return f'{params}["{op.detail[0]}"]'
    if op.name == "const":
        return repr(op.detail[0])
    if op.name in known:
        return known[op.name]
    if op.name == "widen":
        return host_number(op.args[0], params, known)
    name = str(op.detail[0]) if op.name == "map" else ""
    if len(op.args) != 2 or name not in (*_INFIX, *_CALLS):
        return None
    left, right = (host_number(arg, params, known) for arg in op.args)
    if left is None or right is None:
        return None
    return f"({left} {_INFIX[name]} {right})" if name in _INFIX else f"{_CALLS[name]}({left}, {right})"
