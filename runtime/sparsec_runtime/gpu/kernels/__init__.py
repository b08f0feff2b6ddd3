"""Triton kernels of a decode step. One file per idea; letters as in the language: h KV head, g query head of one KV head, t token, p page, c channel."""
