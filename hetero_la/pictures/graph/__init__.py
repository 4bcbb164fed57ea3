"""Pictures of task graphs."""
