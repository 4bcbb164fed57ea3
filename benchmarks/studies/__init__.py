"""Studies of what GPUs and CPUs are good at: one file each, run by ``hetero-la study NAME``."""
