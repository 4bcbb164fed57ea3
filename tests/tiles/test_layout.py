"""How a matrix is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hetero_la.tiles.layout import TileLayout


@pytest.mark.parametrize("tail", [1, 2, 4, 9])
@pytest.mark.parametrize("nb", [1, 3, 8, 40])
@pytest.mark.parametrize("n", [0, 1, 5, 8, 9, 16, 33])
def test_tiles_cover_the_matrix(n: int, nb: int, tail: int) -> None:
    layout = TileLayout(n, n, nb, tail=tail)
    rows = [layout.rows(i) for i in range(layout.mt)]
    assert rows == [layout.columns(j) for j in range(layout.nt)]
    assert [start for start, _ in rows] == [i * nb for i in range(layout.mt)]
    assert all(stop == start for (_, stop), (start, _) in pairwise(rows))
    assert (rows[-1][1] if rows else 0) == layout.row(layout.mt) == n
    assert [layout.diagonal(k) for k in range(layout.kt)] == [b - a for a, b in rows]
    assert all(stop - start == nb for start, stop in rows[:-1])
    assert not rows or rows[-1][1] - rows[-1][0] <= tail * nb


def test_the_last_tile_stands_for_several() -> None:
    assert [TileLayout(10, 10, 2, tail=3).rows(i) for i in range(3)] == [(0, 2), (2, 4), (4, 10)]


def test_right_hand_sides_have_tiles_of_their_own() -> None:
    layout = TileLayout(10, 10, 4, nrhs=6, tail=2)
    assert (layout.nt, layout.rt, layout.width) == (2, 2, 16)
    assert [layout.columns(j) for j in range(4)] == [(0, 4), (4, 10), (10, 14), (14, 16)]


def test_a_tail_is_for_square_matrices() -> None:
    with pytest.raises(ValueError, match="10 x 9"):
        TileLayout(10, 9, 2, tail=2)
