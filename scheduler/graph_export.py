"""Task graphs for NetworkX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_la.scheduler.tasks import Region

if TYPE_CHECKING:
    import networkx

    from hetero_la.scheduler.graph import TaskGraph


def as_networkx(
    graph: TaskGraph, dtype: Any, placement: Sequence[int] | None = None
) -> networkx.DiGraph:
    """What `TaskGraph.to_networkx` describes."""
    import networkx

    if placement is not None and len(placement) != len(graph):
        raise ValueError(f"{len(graph)} tasks need as many workers, not {len(placement)}")
    found = networkx.DiGraph()
    for task in graph.tasks:
        owner = {} if placement is None else {"owner": placement[task.index]}
        found.add_node(
            task.index, kind=task.kind, step=task.step, column=task.column,
            flops=graph.flops(task), bytes=sum(_nbytes(graph, r, dtype) for r in task.accesses),
            **owner,
        )  # fmt: skip
        found.add_edges_from((before, task.index) for before in task.after)
    return found


def _nbytes(graph: TaskGraph, region: Region, dtype: Any) -> int:
    value = graph.values.get(region.name)
    own = dtype if value is None or value.dtype is None else value.dtype
    return math.prod(graph.shape(region)) * np.dtype(own).itemsize
