"""Arrays on the host and on GPUs: where they lie, how they are copied, what may go wrong."""
