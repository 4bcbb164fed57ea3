"""Calls after the last step of a factorization, without the graph of the whole."""

from __future__ import annotations

from typing import NamedTuple

from hetero_la.scheduler.graph.step_calls import Call, StepCalls


class Closing(NamedTuple):
    """Calls and message after the last step.

    Attributes
    ----------
    chain : list of Call
        Calls of the owner of the last panel alone.
    nbytes : int
        Bytes that it then sends to the others.
    columns : list of list of Call
        Calls of the owner of each tile column after that.
    """

    chain: list[Call]
    nbytes: int
    columns: list[list[Call]]


def closing(steps: StepCalls) -> Closing:
    """Return the calls after the last step: row exchanges of LU, triangles of QR.

    Examples
    --------
    >>> from hetero_la.algorithms.lu import lu_tasks
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> end = closing(StepCalls(lu_tasks, TileLayout(6, 6, 2)))
    >>> [call.kind for call in end.chain], [calls[0].kind for calls in end.columns], end.nbytes
    (['compose', 'compose'], ['laswp', 'laswp'], 24)

    Raises
    ------
    ValueError
        If the graph ends in another way.
    """
    if steps.closing == {"compose", "laswp"}:
        return _row_exchanges(steps)
    if steps.closing == {"lacpy"}:
        return Closing([], 0, [_triangle(steps, k) for k in range(steps.layout.kt)])
    if steps.closing:
        raise ValueError(f"nothing is known of {', '.join(sorted(steps.closing))} at the end")
    return Closing([], 0, [])


def _row_exchanges(steps: StepCalls) -> Closing:
    layout = steps.layout
    below = [layout.m - layout.row(k + 1) for k in range(layout.kt)]
    chain = []
    for k in range(layout.kt - 1, 0, -1):
        after = [(below[k],)] if k < layout.kt - 1 else []
        chain.append(Call("compose", [(layout.diagonal(k),), *after, (below[k - 1],)]))
    columns = [
        [Call("laswp", [(below[j],), (below[j], layout.column_width(j))])]
        for j in range(layout.kt - 1)
    ]
    return Closing(chain, 4 * sum(below[:-1]), columns)  # 4: permutations are of int32


def _triangle(steps: StepCalls, k: int) -> list[Call]:
    layout = steps.layout
    start, stop = layout.rows(k)
    order = layout.diagonal(k)
    return [Call("lacpy", [(order, order), (stop - start, layout.column_width(k))])]
