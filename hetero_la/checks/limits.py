"""Limits on the number of tasks of a graph."""

from __future__ import annotations

from hetero_la.tiles.storage.layout import TileLayout

#: Largest approximate number of tasks in a graph that is built to be inspected only, and in one
#: that is planned for a run; planning the latter takes about a minute.
MAX_TASKS_INSPECTED, MAX_TASKS_PLANNED = 2_000_000, 30_000_000


def require_few_tasks(
    layout: TileLayout, done: str, granularity: str = "column", most: int = MAX_TASKS_INSPECTED
) -> None:
    """Raise ValueError if the graph would have too many tasks, about three per column and step.

    Parameters
    ----------
    layout : TileLayout
        The tiles.
    done : str
        The participle for the message, such as "drawn".
    granularity : {"column", "tile"}, optional
        Size of a task: one column of tiles, or one tile.
    most : int, optional
        The limit.

    Raises
    ------
    ValueError
        If the limit is exceeded.
    """
    columns = layout.nt + layout.rt
    tasks = 3 * layout.kt * max(columns - layout.kt / 2, 1)
    if granularity == "tile":
        tasks *= max(layout.mt / 4, 1)
    if tasks > most:
        raise ValueError(
            f"{layout.mt} x {columns} tiles make about {tasks:.2g} tasks, of which at most "
            f"{most:.2g} are {done}: choose a larger nb"
        )
