"""Kernels on GPUs, by our own CUDA code, cuBLAS and cuSOLVER."""
