"""Whether a method's decode step can run as a graph on a model, and if not, why: the reasons that `explain --target triton` prints."""

from __future__ import annotations

from collections.abc import Mapping

from ..cache import CacheManager
from ..decode_plan import DecodePlan
from ..hooks import AFTER_ATTENTION, BEFORE_ATTENTION, FINISH_STEP, bound_hooks, fires
from ..layout import Layout
from ..models.loading import LoadedModel
from ..models.outline import ModelOutline
from ..models.shape import experts_of
from ..rope import Rope

DECODE_HOOKS = (*BEFORE_ATTENTION["decode"], *AFTER_ATTENTION["decode"], FINISH_STEP)


def reasons_against_graph(method: type[CacheManager]) -> tuple[str, ...]:
    """Empty: decode runs as a graph. The order is that of the step; what only follows from a hook without a kernel is not said."""
    layout, plan = method.LAYOUT, method.DECODE
    reasons = list(plan.reasons)
    if method.decode_kernels is None and not reasons:
        reasons.append("the method was compiled for the torch target: compile it with --target triton")
    bound = bound_hooks(method)
    covered = {*plan.hooks, *plan.idle}
    reasons += [f"{hook} matches no kernel skeleton" for hook in DECODE_HOOKS if hook in bound - covered and not plan.reasons]
    reasons += _zone_reasons(layout, plan)
    if layout.position == "rank" and (plan.pages is not None or plan.tokens is not None):
        reasons.append("positions are counted anew inside the cache, and the step chooses rows: the kernel that turns keys reads all that are held")
    known = {choice.state for choice in (plan.mass, plan.tokens) if choice is not None} | set(plan.unkept)
    reasons += [f"state '{state.name}' is kept by no kernel" for state in layout.states if state.name not in known]
    bounds = {plan.pages.low, plan.pages.high, *plan.unkept} if plan.pages is not None else set(plan.unkept)
    reasons += [f"summary '{summary.name}' is kept by no kernel" for summary in layout.summaries if summary.name not in bounds]
    return tuple(reasons)


def reasons_against_chunk_rows(method: type[CacheManager]) -> tuple[str, ...]:
    """Empty: one kernel a layer turns and stores the rows of a prompt chunk."""
    reasons = ["K lies before RoPE, and queries are turned at their ranks"] if method.LAYOUT.position != "logical" else []
    return (*reasons, *(() if method.LAYOUT.zones[0].raw else (f"zone '{method.LAYOUT.zones[0].name}' encodes new rows as they come",)))


def layer_reasons(manager: CacheManager) -> tuple[str, ...]:
    """What single layers of a manager's model do that the kernels do not."""
    return reasons_of_layers(type(manager), manager.model_facts)


def reasons_of_layers(method: type[CacheManager], facts: Mapping[str, int | float]) -> tuple[str, ...]:
    """The same of a model of these facts, by their names in the language."""
    if method.DECODE.tokens is None:
        return ()
    hooks = ("build_decode_selection", "after_decode_attention")
    both = [layer for layer in range(int(facts["n_layers"])) if all(fires(method, hook, layer, facts) for hook in hooks)]
    return tuple(f"layer {layer} chooses tokens and reads chosen ones: what chooses reads all" for layer in both)


def _zone_reasons(layout: Layout, plan: DecodePlan) -> list[str]:
    """Kernels read one raw zone, or a raw one whose oldest rows move to another, raw or coded one."""
    if len(layout.zones) == 1 and layout.zones[0].raw:
        return []
    if len(layout.zones) == 2 and layout.zones[0].raw and layout.zones[1].name in plan.unkept:
        return []  # the hook that moves rows there has no kernel
    if plan.moves is None or len(layout.zones) != 2 or not layout.zones[0].raw:
        return ["rows lie in several zones, or in a codec: kernels read a raw zone whose oldest rows move to one other zone"]
    reasons = [] if layout.scope == "shared" and layout.position == "logical" else ["rows in two zones are read where all layers and heads hold as many"]
    if plan.mass is not None or plan.pages is not None or plan.tokens is not None:
        reasons.append("rows in two zones are attended whole, and nothing is told of it")
    blocks = [codec.block for codec in layout.zones[1].codecs.values() if codec is not None]
    return reasons + [f"a block of {block} values is no power of two" for block in blocks if block & (block - 1)]


def model_reasons(method: type[CacheManager], model: LoadedModel | ModelOutline) -> tuple[str, ...]:
    """What a model has that the kernels do not do."""
    activation = model.config.hidden_act
    reasons = () if activation == "silu" else (f"the MLP's activation is {activation}, not silu",)
    experts = experts_of(model.config.to_dict())
    if experts > 1:
        reasons += (f"the MLP is a mixture of {experts} experts: no kernel routes tokens to them yet",)
    return reasons + rope_reasons(method, model.rope, model.shape.head_dim)


def rope_reasons(method: type[CacheManager], rope: Rope, head_dim: int) -> tuple[str, ...]:
    """What a rotation has that the kernels do not do."""
    reasons = [] if rope.style == "half-split" else ["RoPE pairs interleaved channels"]
    if method.DECODE.asks_firsts(method.LAYOUT.position) and (rope.dim != head_dim or head_dim & (head_dim - 1)):
        reasons.append(f"RoPE at ranks turns {rope.dim} of {head_dim} channels: the kernel turns all of a power of two")
    return tuple(reasons)
