"""Pictures of task graphs: SVG, PNG, DOT, and pages that zoom in."""

from hetero_la.pictures.drawing import draw, require_suffix
from hetero_la.pictures.placed import PlacedGraph

__all__ = ["PlacedGraph", "draw", "require_suffix"]
