"""How large a graph may be."""

from __future__ import annotations

from hetero_la.tiles.storage.layout import TileLayout

#: Tasks, about, beyond which it takes more memory and patience than it is worth to look at a
#: graph without running it; and to plan at all, which takes a minute then.
MOST_LOOKED_AT, MOST_PLANNED = 2_000_000, 30_000_000


def require_few_tasks(
    layout: TileLayout, done: str, granularity: str = "column", most: int = MOST_LOOKED_AT
) -> None:
    """Raise if there would be too many tasks: about three kinds for each tile column and step.

    Parameters
    ----------
    layout : TileLayout
        The tiles.
    done : str
        What is done with the tasks, for the message: "drawn".
    granularity : {"column", "tile"}, optional
        Whether a task is a column of tiles, or one tile.
    most : int, optional
        The limit.

    Raises
    ------
    ValueError
        With the number of tasks, and the limit.
    """
    columns = layout.nt + layout.rt
    tasks = 3 * layout.kt * max(columns - layout.kt / 2, 1)
    if granularity == "tile":
        tasks *= max(layout.mt / 4, 1)
    if tasks > most:
        raise ValueError(
            f"{layout.mt} x {columns} tiles make about {tasks:.2g} tasks, and no more than "
            f"{most:.2g} are {done}: choose a larger nb"
        )
