"""A plan and its target's text to the files of an artifact. Templates hold text; what goes where is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from textwrap import wrap

from jinja2 import Environment, PackageLoader, StrictUndefined

from sparsec.codegen import torch_target
from sparsec.codegen.folding import fold
from sparsec.codegen.plan import Binding, Plan

_LEGEND = {
    "l": "layer", "i": "query", "h": "KV head", "g": "query head of one KV head", "t": "token (resident row)", "s": "token",
    "p": "page", "c": "channel", "d": "channel", "x": "KV width", "y": "hidden width",
}  # fmt: skip
COLUMNS = 120  # of a generated line; a single long name may pass them
WIDTH = 116


@dataclass(frozen=True, slots=True)
class Origin:
    """Where generated text comes from."""

    path: str
    spec_hash: str
    version: str
    source: tuple[str, ...]  # lines of the spec

    @property
    def name(self) -> str:
        name = PurePath(self.path).name
        return name if name.endswith(".sparse") else f"{name}.sparse"


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    doc: str
    body: tuple[str, ...]


def kernels_text(plan: Plan, origin: Origin) -> str:
    """kernels.py: one function per hook binding and per summary."""
    functions = [Function(b.function, _binding_doc(b), torch_target.write_binding(b, origin.source)) for b in plan.bindings]
    functions += [
        Function(f"summary_{s.name}", _doc(f"Line {s.line}: summary {s.name}[{', '.join(s.letters)}]."), torch_target.write_summary(s))
        for s in plan.layout.summaries
    ]
    uses_torch = any("torch." in line for function in functions for line in function.body)
    results = {f"summary_{s.name}" for s in plan.layout.summaries}
    imports = [*(["PageView"] if results else []), *(["View"] if plan.bindings else [])]
    imports += ["ops"] if any("ops." in line for function in functions for line in function.body) else []
    return render(
        "kernels.py.j2", plan, origin,
        functions=functions, uses_torch=uses_torch, legend=_legend(plan), results=results, imports=imports,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = PackageLoader("sparsec.codegen", "templates")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    made.filters["arguments"] = _arguments
    return made


def _arguments(pointers: list[str], numbers: list[str], constants: str) -> str:
    """The arguments of a Triton kernel, folded: pointers by the names of what they point to, numbers, and the names of constants."""
    runs = [[f"{name}_ptr" for name in pointers], numbers, [f"{name}: tl.constexpr" for name in constants.split()] + ["CHAINED: tl.constexpr = False"]]
    lines = [line for run in (runs[0] + runs[1], runs[2]) for line in _folded_names(run)]
    return "\n".join(f"    {line}," for line in lines)


def _folded_names(names: list[str]) -> list[str]:
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) < WIDTH - 8:
            lines[-1] += f", {name}"
        else:
            lines.append(name)
    return lines


def render(template: str, plan: Plan, origin: Origin, **values: object) -> str:
    text = _environment().get_template(template).render(plan=plan, origin=origin, title=_title(plan), **values)
    folded = [piece for line in text.split("\n") for piece in fold(line, COLUMNS)]
    return "\n".join(folded)


def render_decode(template: str, plan: Plan, origin: Origin, **values: object) -> str:
    """decode.py from a template of templates/triton, without the blanks that its pieces leave."""
    text = render(f"triton/{template}", plan, origin, **values)
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n")) + "\n"


def _title(plan: Plan) -> str:
    text = f"{plan.method}: {plan.doc}" if plan.doc else plan.method
    return "\n".join(wrap(text.replace("\\", "\\\\").replace('"""', "'''"), WIDTH - 4))


def _legend(plan: Plan) -> str:
    letters = [f"{letter} {_LEGEND.get(letter, domain)}" for letter, domain in plan.letters]
    return "\n".join(wrap("Axes: row of the batch, then index letters in this order: " + ", ".join(letters) + ".", WIDTH - 4))


def _binding_doc(binding: Binding) -> str:
    return _doc(f"Line {binding.line}: on {', '.join(binding.hooks)}.")


def _doc(text: str) -> str:
    """The words of a docstring in lines that fit."""
    return "\n    ".join(wrap(text, WIDTH - 8))
