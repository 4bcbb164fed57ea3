"""Which worker owns which tile column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """Owner of each tile column; ``owners[j]`` is a worker's index.

    Examples
    --------
    >>> Distribution.cyclic(5, [1.0, 1.0]).owners
    (0, 1, 0, 1, 0)
    >>> Distribution.cyclic(6, [2.0, 1.0]).owners
    (0, 0, 1, 0, 0, 1)
    """

    owners: tuple[int, ...]

    @classmethod
    def cyclic(cls, columns: int, weights: Sequence[float]) -> Distribution:
        """Column-cyclic; faster workers, of larger weight, get more columns.

        A worker of weight 0 owns nothing.
        """
        if not any(weight > 0 for weight in weights):
            raise ValueError(f"no worker may own columns: weights are {list(weights)}")
        owned = [0] * len(weights)
        owners = []
        able = [g for g, weight in enumerate(weights) if weight > 0]
        for _ in range(columns):
            g = min(able, key=lambda g: ((owned[g] + 1) / weights[g], g))
            owned[g] += 1
            owners.append(g)
        return cls(tuple(owners))

    def columns(self, worker: int) -> list[int]:
        """Tile columns that `worker` owns, in the order of its shard."""
        return [j for j, owner in enumerate(self.owners) if owner == worker]
