"""Whole matrices on a GPU, by cuSOLVER and cuBLAS, on the current stream."""
