"""Optimal sizes of the tiles, one after the other, by dynamic programming."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hetero_la.scheduler.predict.estimate import Stages


class SearchRule(NamedTuple):
    """Constraints on the runs among which the fastest is sought.

    Attributes
    ----------
    lookahead : bool
        Whether the next panel is factored beside the trailing update.
    shrinking : bool
        Whether sizes must not increase, except after the first tile and at the last: where
        several workers own columns cyclically, these are then about equally wide.
    """

    lookahead: bool
    shrinking: bool

    def allows(self, start: int, before: int, nb: int, rest: int) -> bool:
        """Return whether a tile of size `nb` may begin at `start`, `rest` columns from the end."""
        return not self.shrinking or nb <= before or before == start or nb == rest


def best_sizes(
    stages: Stages, order: int, sizes: Sequence[int], largest: int, rules: Sequence[SearchRule]
) -> list[tuple[float, list[int]]]:
    """Return the tile sizes of the shortest run, for each of several rules.

    By Bellman's recursion over the trailing matrix, as Volkov and Demmel choose the block
    sizes of QR ("Benchmarking GPUs to tune dense linear algebra", SC 2008).  The rest of a run
    depends on where its trailing matrix begins and on the size of the tile before, whose update
    overlaps the next panel:

        T(start, before) = min over nb of  stage(start, before, nb) + T(start + nb, nb)

    Parameters
    ----------
    stages : Stages
        Times of the stages.
    order : int
        The smaller of m and n.
    sizes : sequence of int
        Tile sizes to choose from; tiles begin at multiples of their greatest common divisor.
    largest : int
        Largest size of a last tile that takes the whole rest of the matrix.
    rules : sequence of SearchRule
        Constraints: one result each.

    Returns
    -------
    list of tuple
        For each rule the seconds, and the sizes of all tiles.

    Examples
    --------
    >>> from hetero_la.algorithms.routines import ROUTINES
    >>> from hetero_la.scheduler.machine.model import MachineModel
    >>> from hetero_la.scheduler.machine.device import H200
    >>> from hetero_la.tiles.storage.layout import TileLayout
    >>> model = MachineModel((H200,))
    >>> layout = TileLayout(8192, 8192, 512)
    >>> stages = Stages(ROUTINES["lu"].tasks, layout, model, [0], None, "float64")
    >>> rules = [SearchRule(lookahead=True, shrinking=True)]
    >>> ((seconds, found),) = best_sizes(stages, 8192, [256, 512, 1024], 1024, rules)
    >>> found[0] >= found[1] >= found[-2]
    True
    >>> seconds < stages.seconds()
    True
    """
    #: For each rule: (start, size of the tile before) -> least seconds, and size of the tile.
    found: list[dict[tuple[int, int], tuple[float, int]]] = [{} for _ in rules]
    sizes = sorted(sizes)
    for start in reversed(range(0, order, math.gcd(*sizes))):
        rest = order - start
        choice = [nb for nb in sizes if nb < rest]
        if rest <= largest or not choice:
            choice.append(rest)
        panels = {nb: stages.panel(stages.tile(start, nb)) for nb in choice}
        if rest in panels:
            for best in found:
                best[order, rest] = stages.trailing(panels[rest].tile).seconds, 0
        for before in [nb for nb in sizes if nb <= start] if start else [0]:
            last = stages.tile(start - before, before)
            trailing = stages.trailing(last) if before else None
            costs = {nb: stages.stage(trailing, panel) for nb, panel in panels.items()}
            for rule, best in zip(rules, found, strict=True):
                best[start, before] = min(
                    (cost.of(rule.lookahead) + best[start + nb, nb][0], nb)
                    for nb, cost in costs.items()
                    if rule.allows(start, before, nb, rest)
                )
    return [(best[0, 0][0], _chosen(best, order)) for best in found]


def _chosen(best: dict[tuple[int, int], tuple[float, int]], order: int) -> list[int]:
    """Return the sizes of all tiles, given the best one at each place."""
    sizes = [best[0, 0][1]]
    while (start := sum(sizes)) < order:
        sizes.append(best[start, sizes[-1]][1])
    return sizes
