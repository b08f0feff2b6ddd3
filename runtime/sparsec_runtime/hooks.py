"""The lifecycle: which hooks exist and in which order they fire. A generated manager binds a hook by having a method of its name."""

from __future__ import annotations

from collections.abc import Mapping

BEFORE_ATTENTION = {
    "prefill": ("kv_write", "build_prefill_selection", "before_prefill_attention"),
    "decode": ("kv_write", "build_decode_selection", "before_decode_attention"),
}
AFTER_ATTENTION = {
    "prefill": ("after_prefill_attention", "layer_end"),
    "decode": ("after_decode_attention", "layer_end"),
}
END_OF_PROMPT = "end_of_prompt"
FINISH_STEP = "finish_step"
AFTER_SAMPLING = (END_OF_PROMPT, FINISH_STEP)

PROMPT_HOOKS = (*BEFORE_ATTENTION["prefill"], *AFTER_ATTENTION["prefill"], *AFTER_SAMPLING)  # of a prefill step, as they fire
_LAYER_HOOKS = (*BEFORE_ATTENTION["prefill"], *BEFORE_ATTENTION["decode"], *AFTER_ATTENTION["prefill"], *AFTER_ATTENTION["decode"])
HOOKS = frozenset((*_LAYER_HOOKS, *AFTER_SAMPLING))


def bound_hooks(manager: type) -> frozenset[str]:
    """The hooks that a manager class has methods for."""
    return frozenset(name for name in HOOKS if any(name in vars(base) for base in manager.__mro__))


def fires(manager: type, hook: str, layer: int, facts: Mapping[str, int | float]) -> bool:
    """Whether some binding of the hook runs in a layer of a model of these facts."""
    return any(bindings_that_fire(manager, hook, layer, facts))


def bindings_that_fire(manager: type, hook: str, layer: int, facts: Mapping[str, int | float]) -> tuple[bool, ...]:
    """Which bindings of the hook run in a layer."""
    if not any(hook in vars(base) for base in manager.__mro__):
        return ()
    return tuple(guard is None or guard(layer, facts) for guard in manager.GUARDS.get(hook, (None,)))
