"""manager.py of an artifact: layout, params, guards, hooks and host counts as lines of Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import wrap

from sparsec.codegen.emit import WIDTH, Origin, render
from sparsec.codegen.folding import fold
from sparsec.codegen.plan import Binding, CodecPlan, CountPlan, LayoutPlan, ParamPlan, Plan
from sparsec.codegen.skeletons import Skeletons

_COUNTERS = {
    "ends_prompt": 'phase == "prefill" and counts.prompt_done', "prefilling": 'phase == "prefill"', "prompt_done": "counts.prompt_done",
    "steps": "counts.steps", "prompt_rows": "counts.prompt_rows", "length": "counts.length", "rows": "dict(counts.rows)",
}  # fmt: skip


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


def manager_text(plan: Plan, skeletons: Skeletons, origin: Origin) -> str:
    """manager.py: layout, params, guards, hooks and host counts."""
    return render(
        "manager.py.j2", plan, origin,
        imports=_imports(plan, skeletons), guards=[_guard(b) for b in plan.bindings if b.guard is not None], methods=_methods(plan),
        layout=_layout(plan.layout), params=[_param(p) for p in plan.params], counts=_counts(plan.counts),
        summaries=plan.layout.summaries, decode=skeletons.lines,
    )  # fmt: skip


def _imports(plan: Plan, skeletons: Skeletons) -> list[str]:
    layout = plan.layout
    names = {"CacheManager", "Layout", "View", "ZoneLayout"}
    names |= {"ParamSpec"} if plan.params else set()
    names |= {"Codec"} if any(z.key or z.value for z in layout.zones) else set()
    names |= {"StateLayout"} if layout.states else set()
    names |= {"SummaryLayout"} if layout.summaries else set()
    names |= {"Counts"} if plan.counts else set()
    names |= {"PageView"} if layout.summaries else set()
    decode = " ".join(skeletons.lines)
    names |= {"DecodePlan"} if decode else set()
    names |= {name for name in ("Keep", "Mass", "Moves", "PageChoice", "TokenChoice") if f"{name}(" in decode}
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
        lines += fold(f"{name} = {literal}", WIDTH - 8)
        text = text.replace(literal, name)
    return GuardFunction(binding.function, binding.line, (*lines, *fold(f"return {text}", WIDTH - 8)))


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
    conditions += [f"layers_of_{binding.function}(view.some_layer, self.model_facts)"] if ask and binding.guard is not None else []
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
    lines += ["\n            ".join(fold(f"default=lambda params, model: {param.default}", WIDTH - 12, bracketed=True))]
    lines = [", ".join(lines)] if sum(len(line) + 2 for line in lines) < WIDTH - 12 else [", ".join(lines[:3]), *lines[3:]]
    return lines + ([_doc_argument(param.doc)] if param.doc else [])


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
    return [piece for line in lines for piece in fold(line, WIDTH - 8)]
