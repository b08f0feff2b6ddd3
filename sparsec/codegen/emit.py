"""A plan and its target's text to the files of an artifact. Templates hold text; what goes where is decided here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from textwrap import wrap

from jinja2 import Environment, PackageLoader, StrictUndefined

from sparsec.codegen import torch_target
from sparsec.codegen.plan import Binding, CodecPlan, CountPlan, LayoutPlan, ParamPlan, Plan

_LEGEND = {
    "l": "layer", "i": "query", "h": "KV head", "g": "query head of one KV head", "t": "token (resident row)", "s": "token",
    "p": "page", "c": "channel", "d": "channel", "x": "KV width", "y": "hidden width",
}  # fmt: skip
WIDTH = 116
_COUNTERS = {
    "ends_prompt": 'phase == "prefill" and counts.prompt_done', "prefilling": 'phase == "prefill"', "prompt_done": "counts.prompt_done",
    "steps": "counts.steps", "prompt_rows": "counts.prompt_rows", "length": "counts.length", "rows": "dict(counts.rows)",
}  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class GuardFunction:
    function: str
    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HookCall:
    """once: not again after end_of_prompt in one step. conditions: Python text, all must hold."""

    function: str
    once: bool
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HookMethod:
    """guards: of each call, where one has a guard."""

    name: str
    calls: tuple[HookCall, ...]
    guards: tuple[str, ...]


def kernels_text(plan: Plan, origin: Origin) -> str:
    """kernels.py: one function per hook binding and per summary."""
    functions = [Function(b.function, _binding_doc(b), torch_target.write_binding(b, origin.source)) for b in plan.bindings]
    functions += [
        Function(f"summary_{s.name}", f"Line {s.line}: summary {s.name}[{', '.join(s.letters)}].", torch_target.write_summary(s))
        for s in plan.layout.summaries
    ]
    uses_torch = any("torch." in line for function in functions for line in function.body)
    results = {f"summary_{s.name}" for s in plan.layout.summaries}
    imports = [*(["PageView"] if results else []), *(["View"] if plan.bindings else [])]
    imports += ["ops"] if any("ops." in line for function in functions for line in function.body) else []
    return _render(
        "kernels.py.j2", plan, origin,
        functions=functions, uses_torch=uses_torch, legend=_legend(plan), results=results, imports=imports,
    )  # fmt: skip


def manager_text(plan: Plan, origin: Origin) -> str:
    """manager.py: layout, params, guards, hooks and host counts."""
    return _render(
        "manager.py.j2", plan, origin,
        imports=_imports(plan), guards=[_guard(b) for b in plan.bindings if b.guard is not None], methods=_methods(plan),
        layout=_layout(plan.layout), params=[_param(p) for p in plan.params], counts=_counts(plan.counts),
        summaries=plan.layout.summaries,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = PackageLoader("sparsec.codegen", "templates")
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)


def _render(template: str, plan: Plan, origin: Origin, **values: object) -> str:
    text = _environment().get_template(template).render(plan=plan, origin=origin, title=_title(plan), **values)
    assert all(len(line) <= 120 for line in text.splitlines()), "a generated line is longer than 120 columns:\n" + "\n".join(
        line for line in text.splitlines() if len(line) > 120
    )
    return text


def _title(plan: Plan) -> str:
    text = f"{plan.method}: {plan.doc}" if plan.doc else plan.method
    return "\n".join(wrap(text.replace("\\", "\\\\").replace('"""', "'''"), WIDTH - 4))


def _legend(plan: Plan) -> str:
    letters = [f"{letter} {_LEGEND.get(letter, domain)}" for letter, domain in plan.letters]
    return "\n".join(wrap("Axes: row of the batch, then index letters in this order: " + ", ".join(letters) + ".", WIDTH - 4))


def _binding_doc(binding: Binding) -> str:
    return f"Line {binding.line}: on {', '.join(binding.hooks)}."


def _imports(plan: Plan) -> list[str]:
    layout = plan.layout
    names = {"CacheManager", "Layout", "View", "ZoneLayout"}
    names |= {"ParamSpec"} if plan.params else set()
    names |= {"Codec"} if any(z.key or z.value for z in layout.zones) else set()
    names |= {"StateLayout"} if layout.states else set()
    names |= {"SummaryLayout"} if layout.summaries else set()
    names |= {"Counts"} if plan.counts else set()
    names |= {"PageView"} if layout.summaries else set()
    names -= set() if plan.bindings else {"View"}
    host = [*_counts(plan.counts), *(str(b.guard) for b in plan.bindings), str(layout.ring)]
    host += [str(text) for p in plan.params for text in (p.low, p.high, p.default)]
    names |= {"ops"} if any("ops." in text for text in host) else set()
    return sorted(names, key=lambda name: (name.lower() == name, name))


def _guard(binding: Binding) -> GuardFunction:
    """Literal sets of layers get a name, since a guard may use one twice."""
    text, lines = str(binding.guard), []
    for n, literal in enumerate(dict.fromkeys(re.findall(r"\{[^{}]*\}", text)), start=1):
        name = "layers" if n == 1 else f"layers_{n}"
        lines += _fold_line(f"{name} = {literal}")
        text = text.replace(literal, name)
    return GuardFunction(binding.function, binding.line, (*lines, *_fold_line(f"return {text}")))


def _methods(plan: Plan) -> list[HookMethod]:
    order = list(dict.fromkeys(hook for binding in plan.bindings for hook in binding.hooks))
    return [_method(hook, [binding for binding in plan.bindings if hook in binding.hooks]) for hook in order]


def _method(hook: str, bindings: list[Binding]) -> HookMethod:
    """The runtime asks GUARDS first, so only a hook with several bindings asks again, for each."""
    guards = tuple(f"layers_of_{b.function}" if b.guard is not None else "None" for b in bindings)
    calls = tuple(_call(b, hook, len(bindings) > 1) for b in bindings)
    return HookMethod(hook, calls, guards if any(guard != "None" for guard in guards) else ())


def _call(binding: Binding, hook: str, ask: bool) -> HookCall:
    once = hook == "finish_step" and "end_of_prompt" in binding.hooks
    conditions = ["not view.ends_prompt"] if once else []
    conditions += [f"layers_of_{binding.function}(view.layer, self.model_facts)"] if ask and binding.guard is not None else []
    return HookCall(binding.function, once, tuple(conditions))


def _layout(layout: LayoutPlan) -> list[str]:
    """Keyword arguments of Layout, one a line."""
    lines = [f'scope="{layout.scope}"', f'position="{layout.position}"']
    lines += [f"page_size={layout.page_size}"] if layout.page_size is not None else []
    lines += [f"ring=lambda params, model: {layout.ring}"] if layout.ring is not None else []
    zones = [f'ZoneLayout("{z.name}"{_codecs(z.key, z.value)})' for z in layout.zones]
    lines.append(f"zones={_tuple(zones)}")
    lines += ["split=True"] if layout.split else []
    states = [
        f'StateLayout("{s.name}", {_letters(s.letters)}, "{s.dtype}", {s.initial}{", shared=True" if s.shared else ""})' for s in layout.states
    ]
    lines += [f"states={_tuple(states)}"] if states else []
    summaries = [f'SummaryLayout("{s.name}", {_letters(_page_first(s.letters))}, "{s.dtype}")' for s in layout.summaries]
    lines += [f"summaries={_tuple(summaries)}"] if summaries else []
    lines += ["evicts=True"] if layout.evicts else []
    lines += ["observes=True"] if layout.observes else []
    return lines


def _page_first(letters: tuple[str, ...]) -> tuple[str, ...]:
    return ("p", *(a for a in letters if a != "p"))


def _codecs(key: CodecPlan | None, value: CodecPlan | None) -> str:
    if key is None and value is None:
        return ""
    return f', {{"K": {_codec(key)}, "V": {_codec(value)}}}'


def _codec(codec: CodecPlan | None) -> str:
    if codec is None:
        return "None"
    return f'Codec({codec.bits}, along="{codec.along}", block={codec.block}{"" if codec.zero else ", zero=False"})'


def _letters(letters: tuple[str, ...]) -> str:
    return _tuple([f'"{letter}"' for letter in letters])


def _tuple(items: list[str]) -> str:
    text = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if len(text) <= WIDTH - 24:
        return text
    return "(\n" + "".join(f"            {item},\n" for item in items) + "        )"


def _param(param: ParamPlan) -> list[str]:
    """Arguments of ParamSpec, one a line."""
    lines = [f'"{param.name}"', f'"{param.unit}"', f"static={param.static}"]
    for name, text in (("low", param.low), ("high", param.high)):
        lines += [f"{name}=lambda params, model: {text}"] if text is not None else []
    lines += [f"choices={_tuple(list(param.choices))}"] if param.choices else []
    lines += _fold_line(f"default=lambda params, model: {param.default}") if len(param.default) < 84 else [_long_default(param.default)]
    lines = [", ".join(lines)] if sum(len(line) + 2 for line in lines) < WIDTH - 12 else [", ".join(lines[:3]), *lines[3:]]
    return lines + ([_doc_argument(param.doc)] if param.doc else [])


def _long_default(text: str) -> str:
    pieces = _pieces(text, 90)
    return "default=lambda params, model: (\n" + "".join(f"                {piece}\n" for piece in pieces) + "            )"


def _doc_argument(doc: str) -> str:
    text = doc.replace("\\", "\\\\").replace('"', '\\"')
    if len(text) <= 90:
        return f'doc="{text}"'
    pieces = wrap(text, 90, drop_whitespace=False, break_on_hyphens=False)
    return "doc=(\n" + "".join(f'                "{piece}"\n' for piece in pieces) + "            )"


def _counts(counts: tuple[CountPlan, ...]) -> list[str]:
    """The body of rows_after."""
    text = " ".join(f"{c.condition} {c.when} {c.lets} {c.after}" for c in counts)
    used = {name: value for name, value in _COUNTERS.items() if re.search(rf"\b{name}\b", text)}
    lines = [f"{name} = {value}" for name, value in used.items()]
    for count in counts:
        lines.append(f"if {count.condition}:  # line {count.line}")
        lets = [f"{name} = {value}" for name, value in count.lets]
        early = count.when is not None and not any(re.search(rf"\b{name}\b", count.when) for name, _ in count.lets)
        lines += [] if early else [f"    {line}" for line in lets]
        inner = "    " if count.when is None else "        "
        lines += [f"    if {count.when}:"] if count.when is not None else []
        lines += [inner + line for line in (*(lets if early else ()), *count.after)]
    if any(count.after[0].startswith("held") for count in counts):
        lines.append("return replace(counts, length=length, rows=rows)")
    elif counts:
        lines.append("return replace(counts, rows=rows)")
    return [piece for line in lines for piece in _fold_line(line)]


def _fold_line(line: str) -> list[str]:
    """A long `if` or assignment in parentheses, broken at its operators."""
    if len(line) + 8 <= WIDTH:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    body, head, tail = line.strip(), "", ""
    if body.startswith("if ") and body.endswith(":"):
        head, body, tail = "if ", body[3:-1], ":"
    elif body.startswith("return "):
        head, body = "return ", body[7:]
    elif " = " in body:
        name, body = body.split(" = ", 1)
        head = f"{name} = "
    pieces = _pieces(body, WIDTH - 12 - len(indent))
    return [f"{indent}{head}(", *(f"{indent}    {piece}" for piece in pieces), f"{indent}){tail}"]


def _pieces(text: str, width: int) -> list[str]:
    """The expression broken after commas and before `and`, `or`, `if`, `else`; elsewhere only where nothing else helps."""
    pieces = [""]
    for part in re.split(r"(?<=,) | (?=and |or |if |else )", text):
        joined = f"{pieces[-1]} {part}".strip()
        if len(joined) <= width:
            pieces[-1] = joined
        else:
            pieces.append(part)
    broken = (wrap(piece, width, break_long_words=False, break_on_hyphens=False) for piece in pieces if piece)
    return [line for lines in broken for line in lines]
