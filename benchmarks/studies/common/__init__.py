"""What studies share: their form, clocks, CUDA sources, results and plots."""
