"""MAIN PATH of the compiler: text -> syntax -> checked -> special -> graph -> facts -> plan -> artifact, each computed once.

    compilation = Compilation.load("my.sparse", params={"heads": "joint"})
    compilation.artifact.path        # a directory that the runtime can load without this package
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol, Self

from networkx import DiGraph

from sparsec.codegen import artifacts, emit, planner, triton_target
from sparsec.codegen.artifacts import Artifact
from sparsec.codegen.manager_text import manager_text
from sparsec.codegen.plan import Plan
from sparsec.codegen.skeletons import Skeletons, match_skeletons
from sparsec.diagnostics import Source
from sparsec.dsl import tree as t
from sparsec.dsl.check import check
from sparsec.dsl.checked import Checked
from sparsec.dsl.parser import parse
from sparsec.dsl.source import load_source
from sparsec.dsl.specialise import StaticValue, specialise, static_params
from sparsec.failures import CommandError
from sparsec.graph import facts as facts_of
from sparsec.graph.build import build_graph
from sparsec.graph.facts import Facts
from sparsec.graph.serial import graph_json
from sparsec.graph.values import static_values

if TYPE_CHECKING:
    from sparsec_runtime.cache import CacheManager

DEFAULT_PAGE_SIZE = 16
TARGETS = ("triton", "torch")  # triton: what torch writes, and the kernels of decode steps for CUDA devices


def load_manager(compilation: Compilation) -> type[CacheManager]:
    """The compiled method, ready for an engine."""
    from sparsec_runtime.artifact import load_artifact

    return load_artifact(compilation.artifact.path)


class ModelNames(Protocol):
    """A model's sizes under the names of the language (`sparsec.model_facts`)."""

    def names(self) -> Mapping[str, int | float]: ...


@dataclass(eq=False)
class Compilation:
    """One method with the values of its static params.

    params: as the user gave them, of static and of per-request params alike. model: facts by their names in the language; an
    artifact does not depend on them, but checks that need layers do. record: lets whose values a trace wants.
    """

    source: Source
    params: Mapping[str, object] = field(default_factory=dict)
    model: Mapping[str, int | float] | None = None
    target: str = "triton"
    record: frozenset[str] = frozenset()

    @classmethod
    def load(
        cls, name_or_path: str, params: Mapping[str, object] | None = None, model: ModelNames | Mapping[str, int | float] | None = None,
        target: str = "triton", record: frozenset[str] = frozenset(),
    ) -> Self:  # fmt: skip
        """From a shipped method's name or a path."""
        facts = model if model is None or isinstance(model, Mapping) else model.names()
        return cls(load_source(name_or_path), dict(params or {}), facts, target, record)

    @property
    def name(self) -> str:
        return self.syntax.method.name.text

    @cached_property
    def syntax(self) -> t.SparseFile:
        return parse(self.source)

    @cached_property
    def checked(self) -> Checked:
        return check(self.syntax, self.source, self.model)

    @cached_property
    def param_names(self) -> tuple[str, ...]:
        return tuple(param.name.text for param in self.checked.method.of(t.Param))

    @cached_property
    def static_names(self) -> frozenset[str]:
        return static_params(self.checked.method)

    @cached_property
    def static_values(self) -> dict[str, StaticValue]:
        """Values that are compiled in, defaults included."""
        return static_values(self.checked, {name: value for name, value in self.params.items() if name in self.static_names})

    @property
    def dynamic_params(self) -> dict[str, object]:
        """The given values of params that each request may set anew."""
        return {name: value for name, value in self.params.items() if name not in self.static_names}

    @cached_property
    def special(self) -> Checked:
        """Static params replaced, constants folded, checked again without lints."""
        return check(specialise(self.checked, self.static_values), self.source, self.model, strict=False)

    @cached_property
    def graph(self) -> DiGraph:
        """Hooks, rules, states and actions, verified after every pass."""
        return build_graph(self.special)

    @cached_property
    def facts(self) -> Facts:
        return facts_of.derive(self.special, self.static_values, self.checked)

    @property
    def page_size(self) -> int:
        return self.facts.page_size or DEFAULT_PAGE_SIZE

    @cached_property
    def plan(self) -> Plan:
        if self.target not in TARGETS:
            raise CommandError(f"target {self.target!r} does not exist: use {' or '.join(TARGETS)}", exit_code=2)
        return planner.make_plan(self.checked, self.special, self.static_values, self.facts, self.record)

    @cached_property
    def origin(self) -> emit.Origin:
        return emit.Origin(self.source.path, sha256(self.source.text.encode()).hexdigest(), artifacts.compiler_version(), self._lines)

    @property
    def _lines(self) -> tuple[str, ...]:
        return tuple(self.source.text.split("\n"))

    @cached_property
    def kernels(self) -> str:
        return emit.kernels_text(self.plan, self.origin)

    @cached_property
    def skeletons(self) -> Skeletons:
        """Which kernels the decode step is made of, or why it has none."""
        return match_skeletons(self.plan)

    @cached_property
    def decode(self) -> str | None:
        """Triton kernels of the decode step; None: the torch functions run it."""
        if self.target != "triton" or self.skeletons.reasons:
            return None
        return triton_target.decode_text(self.plan, self.skeletons, self.origin)

    @cached_property
    def manager(self) -> str:
        return manager_text(self.plan, self.skeletons, self.origin)

    @cached_property
    def artifact(self) -> Artifact:
        """Published in the artifact cache, or found there."""
        return artifacts.publish(self._files(), self._manifest())

    def write(self, directory: str) -> Artifact:
        """The same artifact in a directory of the user's choice."""
        return artifacts.write(directory, self._files(), self._manifest())

    def _files(self) -> dict[str, str]:
        files = {
            "spec.sparse": self.source.text, "graph.json": graph_json(self.graph), "facts.json": self.facts.to_json(),
            "kernels.py": self.kernels, "manager.py": self.manager,
        }  # fmt: skip
        return files if self.decode is None else {**files, "decode.py": self.decode}

    def _manifest(self) -> dict[str, object]:
        return artifacts.manifest(self.name, self.target, self.static_values)
