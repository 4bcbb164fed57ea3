"""Kernels on CPUs, by BLAS and LAPACK."""
