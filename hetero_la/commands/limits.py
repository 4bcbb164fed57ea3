"""How large a graph may be that a command makes without running it."""

from __future__ import annotations

from hetero_la.tiles.layout import TileLayout

#: Tasks, about, beyond which a graph takes more memory and patience than it is worth.
_MOST_TASKS = 2_000_000


def require_few_tasks(layout: TileLayout, done: str, granularity: str = "column") -> None:
    """Raise if there would be too many tasks: about three kinds for each tile column and step.

    Parameters
    ----------
    layout : TileLayout
        The tiles.
    done : str
        What is done with the tasks, for the message: "drawn".
    granularity : {"column", "tile"}, optional
        Whether a task is a column of tiles, or one tile.

    Raises
    ------
    ValueError
        With the number of tasks, and the limit.
    """
    columns = layout.nt + layout.rt
    tasks = 3 * layout.kt * max(columns - layout.kt / 2, 1)
    if granularity == "tile":
        tasks *= max(layout.mt / 4, 1)
    if tasks > _MOST_TASKS:
        raise ValueError(
            f"{layout.mt} x {columns} tiles make about {tasks:.2g} tasks, and no more than "
            f"{_MOST_TASKS:.2g} are {done}: choose a larger --nb or a smaller --n"
        )
