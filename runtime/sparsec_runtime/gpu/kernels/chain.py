"""Programmatic dependent launch: a kernel is set up while the one before it still runs, and waits here before it reads what that one wrote.

Every kernel of a chain waits, so a wait covers all kernels before. CHAINED is off where the launch attribute is absent (interpreter, older GPUs).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def after_previous(CHAINED: tl.constexpr):
    """Before the first read of anything that a kernel of this step writes."""
    if CHAINED:
        gdc_wait()


@triton.jit
def let_next(CHAINED: tl.constexpr):
    """When most of the work is done: programs of the next kernel take no room from this one's before."""
    if CHAINED:
        gdc_launch_dependents()
