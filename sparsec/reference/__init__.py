"""The oracle: interprets a method on plain tensors, one sequence, all layers, no paging. Simple first; nothing is shared with a target
but the rotation of RoPE. `Sequence` runs a method step by step."""

from sparsec.reference.program import Program, Unsupported
from sparsec.reference.sequence import EnsureFailure, Sequence

__all__ = ["EnsureFailure", "Program", "Sequence", "Unsupported"]
