"""
A Dask pipeline
===============

Scattered measurements from a Zarr store, interpolated by a kernel matrix.

Everything is lazy until the last line of the pipeline: reading the blocks, building the kernel
matrix from them, solving with it, and reducing the errors to one number.  On a cluster, the
matrix is never in one place.  The measurements are those of Franke's function, the usual test of
interpolation in the plane; the script writes them first, and fails unless the interpolant is
close to it between them.  It needs zarr (``pip install 'hetero-la[files]'``). ::

    python examples/08_dask_pipeline.py
"""

# %%
# The measurements
# ----------------

import tempfile
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from matplotlib import pyplot

import hetero_la

N = 1500
LENGTH, NUGGET = 0.15, 1e-6
#: Root mean square error that interpolation from 800 points or more stays below.
LIMIT = 1e-3


def franke(points: Any) -> Any:
    """Evaluate Franke's function (1979): two hills, a saddle and a dip in the unit square."""
    x, y = 9 * points[:, 0], 9 * points[:, 1]
    return (
        0.75 * np.exp(-((x - 2) ** 2 + (y - 2) ** 2) / 4)
        + 0.75 * np.exp(-((x + 1) ** 2) / 49 - (y + 1) / 10)
        + 0.5 * np.exp(-((x - 7) ** 2 + (y - 3) ** 2) / 4)
        - 0.2 * np.exp(-((x - 4) ** 2) - (y - 7) ** 2)
    )


def kernel(first: da.Array, second: da.Array) -> da.Array:
    """Return the Gaussian of the distances between two sets of points."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None]
    return da.exp((2 * first @ second.T - squares) / (2 * LENGTH**2))


def measure(store: Path, n: int) -> None:
    """Write `n` measurements, in blocks."""
    points = np.random.default_rng(0).random((n, 2))
    for name, array in (("points", points), ("values", franke(points))):
        blocks = zarr.create_array(
            store / name, shape=array.shape, chunks=(500, *array.shape[1:]), dtype=array.dtype
        )
        blocks[...] = array


folder = tempfile.TemporaryDirectory()
store = Path(folder.name)
measure(store, N)

# %%
# The pipeline
# ------------
# With a `dask.distributed.Client`, the same lines run on its workers.

points, values = da.from_zarr(store / "points"), da.from_zarr(store / "values")
matrix = kernel(points, points) + NUGGET * da.eye(len(points), chunks=points.chunks[0][0])
weights = hetero_la.solve(matrix, values, assume_a="pos")
between = da.random.default_rng(1).random((1000, 2), chunks=250)
error = kernel(between, points) @ weights - franke(between)
rms = da.sqrt((error**2).mean())
matrix

# %%
# Only now is anything read or computed, and the matrix is built and factored once for all
# results.

rms, places, errors = dask.compute(rms, between, error)
folder.cleanup()
print(f"root mean square error between {N} measurements: {rms:.2e}")

figure, axes = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
drawn = axes.scatter(*places.T, c=np.log10(np.abs(errors)), s=12, cmap="viridis")
figure.colorbar(drawn, label="log10 of the error")
axes.set(title="interpolation of Franke's function", aspect="equal")

assert rms < LIMIT
print("the interpolant agrees with Franke's function")
