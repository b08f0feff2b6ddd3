"""sparsec: a declarative compiler and engine for sparse-attention LLM inference."""
