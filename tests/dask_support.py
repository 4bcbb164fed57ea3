"""What the tests of Dask arrays share: problems in chunks, and what is left on workers."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from distributed import Client
from numpy.typing import DTypeLike, NDArray

import hetero_la
from hetero_la.scheduler.on_dask import held_shard
from tests.support import CLOSE, positive, random

NB = 16


def chunked(a: NDArray, chunks: Any) -> da.Array:
    """A Dask array that holds a copy of `a`."""
    return da.from_array(a.copy(), chunks=chunks)


class Case(NamedTuple):
    """A call of a public function: what it is given, and by which keywords."""

    name: str
    arrays: tuple[NDArray, ...]
    options: dict[str, Any]

    def call(self, change: Callable[[NDArray], Any] = lambda a: a, **options: Any) -> Any:
        """The result for the arrays, each changed."""
        arrays = [change(a) for a in self.arrays]
        if self.name in ("lu_solve", "cho_solve"):
            factor = getattr(hetero_la, "lu_factor" if self.name == "lu_solve" else "cho_factor")
            lower = {} if self.name == "lu_solve" else {"lower": self.options["lower"]}
            given = {k: v for k, v in self.options.items() if k != "lower"}
            factors = factor(arrays[0], **lower, **options)
            return getattr(hetero_la, self.name)(tuple(factors), arrays[1], **given)
        return getattr(hetero_la, self.name)(*arrays, **self.options, **options)

    def __str__(self) -> str:
        shapes = " ".join("x".join(map(str, a.shape)) for a in self.arrays)
        return f"{self.name} {shapes} {self.options}"


def any_shape_cases(m: int, n: int, dtype: DTypeLike) -> list[Case]:
    """All functions of any matrix."""
    a, b = random(m, n, dtype, seed=m), random(m, 3, dtype, seed=1)
    return [
        Case("lu_factor", (a,), {}),
        *[Case("lu", (a,), o) for o in ({}, {"permute_l": True}, {"p_indices": True})],
        *[Case("qr", (a,), {"mode": mode, "pivoting": pivoting})
          for mode in ("full", "economic", "r", "raw") for pivoting in (False, True)],
        *[Case("lstsq", (a, b), {"lapack_driver": driver}) for driver in (None, "gelsy", "gels")],
        Case("lstsq", (a, b[:, 0].copy()), {}),
    ]  # fmt: skip


def square_cases(n: int, dtype: DTypeLike) -> list[Case]:
    """All functions of a square matrix."""
    a, p, b = random(n, n, dtype), positive(n, dtype), random(n, 2, dtype, seed=1)
    one = b[:, 0].copy()
    dominant = a + 2 * n * np.eye(n, dtype=dtype)
    names = ("diagonal", "tridiagonal", "banded", "upper triangular", "lower triangular")
    real = np.dtype(dtype).kind == "f"
    return [
        *[Case(name, (a,), {}) for name in ("inv", "det", "slogdet")],
        *[Case("solve", (a, rhs), {}) for rhs in (b, one)],
        *[Case("lu_solve", (a, b), {"trans": trans}) for trans in (0, 1, 2)],
        *[Case("solve", (dominant, one), {"assume_a": name}) for name in names],
        *[Case("solve", (dominant, b), {"assume_a": name, "transposed": True})
          for name in (*names[3:], "general") if real],
        *[Case("inv", (dominant,), {"assume_a": name}) for name in names[3:]],
        *[Case(name, (p, *more), {"lower": lower, **options})
          for lower in (False, True)
          for name, more, options in (
              ("cholesky", (), {}), ("cho_factor", (), {}), ("cho_solve", (b,), {}),
              ("inv", (), {"assume_a": "pos"}), ("solve", (one,), {"assume_a": "pos"}),
              ("solve", (b,), {"assume_a": "her"}), ("solve", (b,), {"assume_a": "sym"}))],
    ]  # fmt: skip


def assert_same(found: Any, expected: Any, computed: str | None = None) -> None:
    """Equal kinds, shapes and dtypes, and values as close as the type `computed` in allows.

    That is their own type by default; a determinant of single numbers is a double one.
    """
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, computed)
        return
    if expected is None or isinstance(expected, bool):
        assert found is expected
        return
    wanted = np.asarray(expected)
    assert np.shape(found) == wanted.shape
    assert np.asarray(found).dtype == wanted.dtype
    limit = 10 * CLOSE.get(computed or wanted.dtype.name, 0.0) * np.abs(wanted).max(initial=0)
    assert np.abs(found - wanted).max(initial=0) <= limit


def shards_held() -> int:
    """Shards that are alive in this process, garbage apart."""

    def count() -> int:
        return sum(not held.empty for held in list(held_shard._alive))

    if count():
        gc.collect()
    return count()


def left_on_workers(client: Client) -> list[Any]:
    """Shards and results that the workers still hold."""

    def look(dask_worker: Any) -> list[Any]:
        shards = ["shard"] * shards_held()
        return shards + [key for key in list(dask_worker.data) if "hetero" in str(key)]

    return [entry for entries in client.run(look).values() for entry in entries]


def on_host(found: Any) -> Any:
    """What may be on GPUs, and in tuples, on the host."""
    if isinstance(found, tuple):
        return tuple(map(on_host, found))
    return found.get() if hasattr(found, "get") else found


def nothing_left(client: Client) -> bool:
    """Whether all has gone, or goes within seconds: Dask lets go of results in its own time."""
    for _ in range(50):
        if not left_on_workers(client):
            return True
        time.sleep(0.1)
    return False


def reset_peak() -> float:
    """Forget the peak of this process's memory; return what it has now, in bytes."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return memory("VmRSS")


def memory(what: str) -> float:
    """Bytes of this process that the kernel says under a name."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what))
