"""How a matrix is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hetero_la.planning.options import Options
from hetero_la.tiles.storage.layout import MOST_TILES, TileLayout, tile_count
from hetero_la.tiles.storage.tile_sizes import sizes_of_cut, sizes_text, tile_sizes


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


def test_the_last_tile_is_named_where_several_are_merged_into_it() -> None:
    assert TileLayout(4000, 4000, 500, tail=4).tiles_text == "500, the last of 2000"
    assert (
        TileLayout(4000, 4000, 500).tiles_text == TileLayout(0, 0, 500, tail=4).tiles_text == "500"
    )


@pytest.mark.parametrize("tail", [1, 3])
@pytest.mark.parametrize("sizes", [(1, 2, 5), (7, 3, 2), (4, 1, 4, 1, 6), (50, 2), (33, 1)])
@pytest.mark.parametrize("n", [0, 1, 5, 8, 33])
def test_tiles_of_several_sizes_cover_the_matrix(n: int, sizes: tuple[int, ...], tail: int) -> None:
    whole, layout = TileLayout(n, n, sizes), TileLayout(n, n, sizes, n, tail=tail)
    widths = [*sizes, *[sizes[-1]] * n]
    assert all(
        width == wanted for width, wanted in zip(whole.column_widths[:-1], widths, strict=False)
    )
    assert not n or 0 < whole.column_widths[-1] <= widths[whole.nt - 1]
    assert whole.row_starts == whole.column_starts
    assert tile_count(n, sizes) == whole.nt
    assert whole.row_starts == [sum(whole.column_widths[:i]) for i in range(whole.mt + 1)]
    assert layout.mt == layout.nt == max(whole.mt - tail + 1, min(n, 1))
    assert layout.row_starts == [*whole.row_starts[: layout.mt], n]
    beside = [layout.columns(j) for j in range(layout.nt, layout.nt + layout.rt)]
    assert [stop - start for start, stop in beside] == whole.column_widths
    assert not beside or beside[0][0] == n == beside[-1][1] - n


@pytest.mark.parametrize("shape", [(2**60, 1), (1, 2**60), (1, 1, 2**60)])
def test_more_tiles_than_can_be_listed(shape: tuple[int, ...]) -> None:
    m, n, *nrhs = shape
    with pytest.raises(ValueError, match=f"nb = 8 cuts {2**60} .* into {2**57} tiles"):
        TileLayout(m, n, 8, *nrhs)
    assert TileLayout(2**60, 2**60, 2**60).nt == 1
    assert tile_count(8 * MOST_TILES, 8) == MOST_TILES


def test_one_size_is_written_in_one_way() -> None:
    assert tile_sizes([8, 8, 8]) == tile_sizes("3x8") == tile_sizes("8") == tile_sizes(8) == 8
    assert tile_sizes(np.array([4, 8, 8])) == tile_sizes("4+2x8") == tile_sizes(" 4 + 8 ") == (4, 8)
    for sizes in (8, (4, 8), (4, 4, 8), (1, 2, 1, 2)):
        assert tile_sizes(sizes_text(sizes)) == sizes
    assert Options(nb=[4, 8, 8]) == Options(nb="4+8")
    assert hash(Options(nb=[4, 8])) == hash(Options(nb=(4, 8, 8)))


def test_a_cut_is_told_from_its_widths() -> None:
    for sizes in (8, (4, 8), (8, 4), (4, 4, 9, 2), (3, 30)):
        layout = TileLayout(29, 29, sizes)
        again = TileLayout(29, 29, sizes_of_cut(layout.column_widths))
        assert again.column_starts == layout.column_starts


def test_the_last_tile_stands_for_several() -> None:
    assert [TileLayout(10, 10, 2, tail=3).rows(i) for i in range(3)] == [(0, 2), (2, 4), (4, 10)]


def test_right_hand_sides_have_tiles_of_their_own() -> None:
    layout = TileLayout(10, 10, 4, nrhs=6, tail=2)
    assert (layout.nt, layout.rt, layout.width) == (2, 2, 16)
    assert [layout.columns(j) for j in range(4)] == [(0, 4), (4, 10), (10, 14), (14, 16)]


def test_a_tail_is_for_square_matrices() -> None:
    with pytest.raises(ValueError, match="10 x 9"):
        TileLayout(10, 9, 2, tail=2)
