"""Arrays on the host and on GPUs: their device, copies, and errors."""
