"""Predictions of factorizations on a described machine, with one GPU or a thousand."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.checks.inputs import DTYPES, as_sizes
from hetero_la.configs import available_machines, load_machine
from hetero_la.planning.options import Options
from hetero_la.predict.forecast import Forecast
from hetero_la.scheduler.machine.cluster_model import ClusterModel
from hetero_la.scheduler.machine.machine_files import read_cluster
from hetero_la.scheduler.predict.at_scale import simulate_at_scale
from hetero_la.tiles.arrays.counted import a_matrix, counted, in_bytes
from hetero_la.tiles.arrays.names import unknown_name
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.tile_sizes import TileSizes, clipped, tile_sizes

#: Factorizations that can be predicted.
FACTORIZATIONS = tuple(name for name, routine in ROUTINES.items() if routine.factors)
#: Tile sizes tried by default; the fastest that fits is used.
TILE_SIZES = (256, 512, 1024)
#: Maximum number of steps to simulate; each takes about a millisecond.
_MOST_STEPS = 20_000


def read_machine(source: str | os.PathLike[str]) -> ClusterModel:
    """Read the description of a machine.

    Parameters
    ----------
    source : str or path
        A TOML file, as ``docs/how_to/scaling.md`` describes it, or one of
        `hetero_la.configs.available_machines`.

    Raises
    ------
    ValueError
        If an entry is missing, unknown or out of range; the message names the source.

    Examples
    --------
    >>> from hetero_la.predict.scaling import read_machine
    >>> read_machine("dgx-h200-x128").gpus
    1024
    """
    try:
        if str(source) in available_machines():
            return read_cluster(load_machine(str(source)))
        return read_cluster(tomllib.loads(Path(source).read_text(encoding="utf-8")))
    except FileNotFoundError:
        known = available_machines()
        raise ValueError(unknown_name("file or machine ", str(source), known)) from None
    except (ValueError, OSError) as error:
        raise ValueError(f"cannot read the machine {source}: {error}") from error


def forecast(
    routine: str,
    shape: tuple[int, int],
    machine: ClusterModel | str | os.PathLike[str],
    gpus: int | None = None,
    *,
    nb: int | str | Sequence[TileSizes | str] | None = None,
    lookahead: int = 1,
    dtype: Any = np.float64,
) -> Forecast:
    """Predict a factorization on a described machine.

    Parameters
    ----------
    routine : str
        The factorization: one of `FACTORIZATIONS`.
    shape : tuple of int
        Rows and columns of the matrix.
    machine : ClusterModel, str or path
        The machine, or the source of its description: see `read_machine`.
    gpus : int, optional
        Number of GPUs to use; by default all.
    nb : int, str or sequence of int and str, optional
        Tile size, or several to try; the fastest that fits is used.  A text is read as in
        `hetero_la.Options`: ``"12x1024+512"`` is one sequence of sizes.  By default
        `TILE_SIZES`.
    lookahead : int, optional
        Number of panels factored ahead.
    dtype : dtype, optional
        Element type: float32, float64, complex64 or complex128.

    Returns
    -------
    Forecast

    Raises
    ------
    ValueError
        For an invalid routine, shape, dtype or number of GPUs.

    Examples
    --------
    >>> from hetero_la.predict.scaling import forecast
    >>> found = forecast("cholesky", (200_000, 200_000), "dgx-h200", 8, nb=1024)
    >>> found.fits, found.layout.kt
    (True, 193)
    """
    if routine not in FACTORIZATIONS:
        raise ValueError(f"{routine!r} is none of {', '.join(FACTORIZATIONS)}")
    shape = as_sizes(shape, 0)[:2]
    if min(shape) < 1:
        raise ValueError(f"the matrix must have rows and columns, not shape {shape}")
    if np.dtype(dtype).name not in DTYPES:
        raise ValueError(f"dtype {np.dtype(dtype)} is not one of {', '.join(DTYPES)}")
    ROUTINES[routine].require_shape(routine, *shape)
    found = _as_machine(machine)
    gpus = found.gpus if gpus is None else gpus
    tried = []
    for size in _sizes(nb, shape):
        Options(lookahead=lookahead)  # raises for an invalid value
        tail = ROUTINES[routine].gpu_tail if isinstance(size, int) else 1
        layout = TileLayout(*shape, size, 0, tail)
        if layout.kt > _MOST_STEPS:
            raise ValueError(
                f"nb = {layout.nb_text} makes {layout.kt} steps, and no more than {_MOST_STEPS} "
                "are simulated: choose a larger one"
            )
        run = simulate_at_scale(
            ROUTINES[routine].tasks, layout, found, gpus, depth=lookahead, dtype=dtype
        )
        tried.append(Forecast(routine, layout, np.dtype(dtype), found, gpus, lookahead, run))
    if not tried:
        raise ValueError("there must be at least one tile size")
    return min(tried, key=lambda found: (not found.fits, found.seconds))


def _sizes(
    nb: int | str | Sequence[TileSizes | str] | None, shape: tuple[int, int]
) -> list[TileSizes]:
    """Return the tile sizes to try: those asked for, or the default ones without too many steps."""
    if nb is None:
        few = [size for size in TILE_SIZES if min(shape) <= size * _MOST_STEPS]
        nb = few or TILE_SIZES[-1]
    sizes = [nb] if isinstance(nb, int | str) else nb
    return list(dict.fromkeys(clipped(tile_sizes(size), max(shape)) for size in sizes))


def strong_scaling(
    routine: str,
    shape: tuple[int, int],
    machine: ClusterModel | str | os.PathLike[str],
    gpus: int | None = None,
    *,
    anyway: bool = False,
    **options: Any,
) -> list[Forecast]:
    """Predict one matrix on 1, 2, 4, ... GPUs, up to `gpus`, where it fits.

    Parameters are those of `forecast`, and `anyway`: include numbers of GPUs on which the matrix
    does not fit.

    Raises
    ------
    ValueError
        If it fits on none of these numbers of GPUs.

    Examples
    --------
    >>> from hetero_la.predict.scaling import strong_scaling
    >>> rows = strong_scaling("qr", (60000, 60000), "dgx-h200", nb=512)
    >>> [row.gpus for row in rows], rows[0].seconds > rows[-1].seconds
    ([1, 2, 4, 8], True)
    """
    found = _as_machine(machine)
    rows = [
        forecast(routine, shape, found, count, **options)
        for count in _powers(found.gpus if gpus is None else gpus)
        if anyway or _may_fit(shape, found, count, options)
    ]
    rows = [row for row in rows if anyway or row.fits]
    if not rows:
        raise ValueError(
            f"{a_matrix(*shape)} does not fit on "
            f"{counted(gpus or found.gpus, 'GPU')} of {found.name} "
            f"with {in_bytes(found.memory)} each"
        )
    return rows


def weak_scaling(
    routine: str,
    shape: tuple[int, int],
    machine: ClusterModel | str | os.PathLike[str],
    gpus: int | None = None,
    **options: Any,
) -> list[Forecast]:
    """Predict matrices on 1, 2, 4, ... GPUs with the memory per GPU of `shape` on `gpus`.

    Parameters are those of `forecast`.

    Examples
    --------
    >>> from hetero_la.predict.scaling import weak_scaling
    >>> rows = weak_scaling("lu", (80000, 80000), "dgx-h200", 4, nb=1024)
    >>> [(row.gpus, row.layout.n) for row in rows]
    [(1, 40000), (2, 56569), (4, 80000)]
    """
    found = _as_machine(machine)
    most = found.gpus if gpus is None else gpus
    rows = []
    for count in _powers(most):
        m, n = (max(round(size * (count / most) ** 0.5), 1) for size in shape)
        rows.append(forecast(routine, (m, n), found, count, **options))
    return rows


def _as_machine(machine: ClusterModel | str | os.PathLike[str]) -> ClusterModel:
    return machine if isinstance(machine, ClusterModel) else read_machine(machine)


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ..., and `most`."""
    if most < 1:
        raise ValueError(f"there must be at least one GPU, not {most}")
    return sorted({2**i for i in range(most.bit_length()) if 2**i <= most} | {most})


def _may_fit(
    shape: tuple[int, int], machine: ClusterModel, gpus: int, options: dict[str, Any]
) -> bool:
    """Return whether the GPUs have enough memory for the matrix alone."""
    itemsize = np.dtype(options.get("dtype", np.float64)).itemsize
    return shape[0] * shape[1] * itemsize <= gpus * machine.memory
