"""Distribution of tile columns over workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero_la.tiles.arrays.displayed import one_line


@dataclass(frozen=True, slots=True, repr=False)
class Distribution:
    """Owner of each tile column; ``owners[j]`` is a worker's index.

    Examples
    --------
    >>> Distribution.cyclic(5, [1.0, 1.0]).owners
    (0, 1, 0, 1, 0)
    >>> Distribution.cyclic(6, [2.0, 1.0]).owners
    (0, 0, 1, 0, 0, 1)
    >>> Distribution.cyclic(6, [1.0, 1.0], alternating=True).owners
    (0, 1, 1, 0, 0, 1)
    >>> Distribution.cyclic(5, [1.0, 1.0], together=2).owners
    (0, 0, 1, 1, 0)
    """

    owners: tuple[int, ...]

    def __repr__(self) -> str:
        return one_line("Distribution", f"owners={self.owners}")

    @classmethod
    def cyclic(
        cls, columns: int, weights: Sequence[float], *, alternating: bool = False,
        together: int = 1,
    ) -> Distribution:  # fmt: skip
        """Deal out columns cyclically; faster workers, of larger weight, get more of them.

        A worker of weight 0 owns nothing.  With `alternating`, every other round goes
        backwards: the first and the last worker then own pairs of neighbours, and it is not
        always the same worker that owns more of the trailing matrix.  So many neighbours as
        `together` says are dealt out as one column.
        """
        if not any(weight > 0 for weight in weights):
            raise ValueError(f"no worker may own columns: weights are {list(weights)}")
        owned = [0] * len(weights)
        owners = []
        able = [g for g, weight in enumerate(weights) if weight > 0]
        for column in range(-(-columns // together)):
            backwards = alternating and column // len(able) % 2
            order = able[::-1] if backwards else able
            g = min(order, key=lambda g: (owned[g] + 1) / weights[g])  # the first of equals
            owned[g] += 1
            owners += [g] * together
        return cls(tuple(owners[:columns]))

    def columns(self, worker: int) -> list[int]:
        """Return the tile columns that `worker` owns, in the order of its shard."""
        return [j for j, owner in enumerate(self.owners) if owner == worker]
