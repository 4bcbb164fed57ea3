"""Stacks of small matrices on a GPU, by the batched routines of cuBLAS and cuSOLVER."""
