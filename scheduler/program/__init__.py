"""Programs: for each worker the instructions, messages and buffers of a run."""
