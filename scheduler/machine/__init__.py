"""The machine model: times of kernels and copies, and the profile in which they are kept."""
