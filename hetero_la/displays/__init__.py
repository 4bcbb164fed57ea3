"""What notebooks show of objects: HTML, registered with `hetero_la.tiles.arrays.displayed`."""

from hetero_la.displays import machines, plans, runs

__all__ = ["machines", "plans", "runs"]
