"""Checked syntax to plan ops: expressions, sets, statements, hooks and host counts."""
