"""Attention over the resident rows of one layer: decode, prefill, and what a method observes of it."""
