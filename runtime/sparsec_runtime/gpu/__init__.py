"""Decode on a CUDA device as one captured graph. Import from the submodules; importing this package imports no Triton."""
