"""Stacks of small matrices on a GPU, by kernels with a block for each matrix."""
