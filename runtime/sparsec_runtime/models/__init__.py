"""Models: shapes, the built-in model and its store, loading, attention adapters, tokenizers. Import from the submodules; this file stays empty
so that reading a shape never imports torch."""
