"""Task graphs: tasks, their accesses, the edges that follow from these, and analysis."""
