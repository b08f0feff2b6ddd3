"""S513: `prompt_rows` is read only where the prompt has surely ended, since it has no value before.

It has one once end_of_prompt has run: in decode hooks, under `decoding`, and in finish_step under `prompt_done` too.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsec.dsl import tree as t
from sparsec.dsl.context import Context
from sparsec.dsl.names import HOOKS
from sparsec.dsl.paths import conjuncts, references

_NAME = "prompt_rows"
_ZERO, _ONE, _STEPS = t.Int(0), t.Int(1), t.Ref(t.Ident("steps"))


def check_prompt_rows(ctx: Context) -> None:
    """Report every read that may come before the prompt's end."""
    if not any(ref.name.text == _NAME for ref in references(ctx.method)):
        return
    for hook in ctx.method.of(t.Hook):
        names = [name.text for name in hook.names if name.text in HOOKS]
        reader = _Reader(ctx, f"`{', '.join(names)}`", all(name in _AFTER_END for name in names))
        known = all(HOOKS[name].phases == ("decode",) for name in names)
        reader.block((t.Branch(hook.when, hook.body, ()),) if hook.when is not None else hook.body, known)
    for item in ctx.method.of(t.Ensure):
        _Reader(ctx, "an `ensure`", True).expression(item.condition, _runs_in_decode(ctx, item))


_AFTER_END = frozenset({"finish_step", *(name for name, hook in HOOKS.items() if hook.phases == ("decode",))})


def _runs_in_decode(ctx: Context, item: t.Ensure) -> bool:
    """A property of a `let` is tested in its hook."""
    symbols = [ctx.symbol_of(ref) for ref in references(item)]
    lets = {id(symbol.item) for symbol in symbols if symbol is not None and isinstance(symbol.item, t.Let)}
    hooks = [hook for hook in ctx.method.of(t.Hook) if lets & {id(node) for node in t.walk(hook)}]
    names = [name.text for hook in hooks for name in hook.names if name.text in HOOKS]
    return bool(names) and all(HOOKS[name].phases == ("decode",) for name in names)


@dataclass(frozen=True, slots=True)
class _Reader:
    """`place` names where a read stands. `settled`: once `prompt_done` is true there, end_of_prompt has run."""

    ctx: Context
    place: str
    settled: bool

    def block(self, body: tuple[t.Stmt, ...], known: bool) -> None:
        for stmt in body:
            if isinstance(stmt, t.Branch):
                self.expression(stmt.condition, known)
                self.block(stmt.then, known or self._ended(stmt.condition))
                self.block(stmt.otherwise, known or self._ended_without(stmt.condition))
            else:
                self.expression(stmt, known)

    def expression(self, node: t.Node, known: bool) -> None:
        """Parts of a connective are read under what its other parts say: what they rule out does not matter."""
        if known:
            return
        match node:
            case t.Ref() if node.name.text == _NAME and not node.indices:
                self._report(node)
            case t.Binary(op="and"):
                for part in (node.left, node.right):
                    self.expression(part, self._ended(node))
            case t.Binary(op="implies"):
                self.expression(node.left, False)
                self.expression(node.right, self._ended(node.left))
            case t.Binary(op="or"):
                self.expression(node.left, self._ended_without(node.right))
                self.expression(node.right, self._ended_without(node.left))
            case t.Call(name=t.Ident(text="where")) if len(node.args) == 3:
                condition, yes, no = node.args
                self.expression(condition, False)
                self.expression(yes, self._ended(condition))
                self.expression(no, self._ended_without(condition))
            case _:
                for child in t.children(node):
                    self.expression(child, False)

    def _report(self, node: t.Ref) -> None:
        message = f"`prompt_rows` is read in {self.place}, which may run before the prompt has ended: it has no value there"
        done = " or `prompt_done`" if self.settled else ""
        self.ctx.report("S513", node, message, f"guard it with `decoding`{done}, e.g. `when decoding and ...`")

    def _ended(self, condition: t.Expr) -> bool:
        """Whether the prompt has surely ended where a condition holds."""
        if self.ctx.failed(condition):
            return True  # reported; what was meant may say it
        return any(self._says_ended(part) for part in conjuncts(condition))

    def _says_ended(self, part: t.Expr) -> bool:
        match part:
            case t.Ref(name=name):
                return name.text == "decoding" or name.text == "prompt_done" and self.settled
            case t.Unary(op="not", operand=operand):
                return self._ended_without(operand)
            case t.Binary(op="or", left=left, right=right):
                return self._ended(left) and self._ended(right)
            case t.Binary(op=">", left=left, right=right):
                return (left, right) == (_STEPS, _ZERO)
            case t.Binary(op=">=", left=left, right=right):
                return (left, right) == (_STEPS, _ONE)
        return False

    def _ended_without(self, condition: t.Expr) -> bool:
        """Whether the prompt has surely ended where a condition does not hold."""
        if self.ctx.failed(condition):
            return True
        match condition:
            case t.Ref(name=name):
                return name.text == "prefilling"
            case t.Unary(op="not", operand=operand):
                return self._ended(operand)
            case t.Binary(op="or", left=left, right=right):
                return self._ended_without(left) or self._ended_without(right)
            case t.Binary(op="and", left=left, right=right):
                return self._ended_without(left) and self._ended_without(right)
        return False
