"""Messages between the workers of a run: by reference, by NCCL, or through host memory."""
