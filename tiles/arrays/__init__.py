"""Arrays on the host and on GPUs: copies, tests for NaN, and errors."""
