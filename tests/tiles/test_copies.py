"""Copies on the host, from arrays of any memory order."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_la.tiles.arrays.copies import copies_on_host, copy_on_host

SHAPES = [
    (1, 1), (0, 5), (5, 0), (70, 3), (3, 70), (600_000, 1), (100_001, 10), (65, 5000), (130, 4096),
    (1025, 513),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["C", "F", "every second"])
def test_copies_are_equal(shape: tuple[int, int], order: str) -> None:
    if order == "every second":
        source = np.random.default_rng(0).random((shape[0], 2 * shape[1]))[:, ::2]
    else:
        source = np.asarray(np.random.default_rng(0).random(shape), order=order)
    one, other = (np.full((shape[0] + 2, shape[1]), 7.0, order="F") for _ in range(2))
    copy_on_host(one[1:-1], source)
    for done in copies_on_host(other[1:-1], source):
        done.result()
    for target in (one, other):
        np.testing.assert_array_equal(target[1:-1], source)
        assert (target[[0, -1]] == 7).all()
