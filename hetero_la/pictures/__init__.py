"""Pictures of task graphs and of runs: SVG, PNG, DOT, and pages that zoom in."""
