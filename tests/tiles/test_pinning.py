"""Memory pinned for the time of a run."""

from __future__ import annotations

import numpy as np
import pytest

from hetero_la.tiles.arrays.transfer import is_pinned
from hetero_la.tiles.storage.pinning import pinned


def test_new_memory_can_be_written_to_by_the_block() -> None:
    new = np.empty((3000, 700), order="F")
    with pinned([], fresh=[new]):
        new[...] = 1
    assert (new == 1).all()


@pytest.mark.gpu
def test_memory_is_pinned_until_the_block_ends() -> None:
    a, new = np.ones((1000, 300)), np.empty((5000, 40), order="F")
    with pinned([a], fresh=[new]):
        assert is_pinned(a)
        assert is_pinned(new)
        assert is_pinned(a[500:, 7:])
    assert not is_pinned(a)
    assert not is_pinned(new)
    assert (a == 1).all()


@pytest.mark.gpu
def test_what_cannot_be_pinned_is_left_as_it_is() -> None:
    import cupy

    a = np.ones((2000, 500), order="F")
    with pinned([a[:3]]):
        assert not is_pinned(a[:3])  # far more would be pinned than is asked for
    with pinned([a]), pinned([a]):  # the driver refuses the second time
        assert is_pinned(a)
        there = cupy.asarray(a)
        assert (there == 1).all()
    assert not is_pinned(a)
