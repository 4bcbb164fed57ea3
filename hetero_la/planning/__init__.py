"""Planning of runs: options, owners, panels, tile sizes, memory."""
