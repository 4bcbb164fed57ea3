"""Pictures of task graphs and of runs: SVG, PNG, DOT, and zoomable HTML pages."""
