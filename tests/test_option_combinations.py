"""Options of all kinds together, as hypothesis makes them up: each run is right, or refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import hetero_la
from hetero_la.testing.residuals import (
    RATIO_LIMIT,
    cholesky_ratio,
    explicit_qr_ratio,
    lu_ratio,
    solve_ratio,
)
from hetero_la.tiles.arrays.errors import InsufficientMemoryError
from tests.support import DTYPES, FUZZ, positive, random

FEW = settings(FUZZ, max_examples=60)
MANY = settings(FEW, max_examples=2000, derandomize=False)
#: What is refused, as options do not go together.
REFUSED = "order='left' is for|coarse is for|checkpoint needs panels|panel='cpu' needs a CPU"
WORKERS: dict[str, dict[str, int]] = {
    "one thread": {"cpus": 1},
    "two threads": {"cpus": 2},
    "virtual GPUs": {"virtual_gpus": 3},
    "both": {"cpus": 1, "virtual_gpus": 2},
}
Clusters = dict[str, hetero_la.Cluster | None]


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with contextlib.ExitStack() as ended:
        yield {"none": None} | {
            name: ended.enter_context(hetero_la.Cluster(**{"cpus": 0, "gpus": 0, **size}))
            for name, size in WORKERS.items()
        }


def _inverse_ratio(a: NDArray, b: NDArray, how: dict[str, Any]) -> float:
    return solve_ratio(a, hetero_la.inv(a, **how), np.eye(len(a), dtype=a.dtype))


def _lazily(function: Callable[..., Any], a: NDArray, *b: NDArray, **how: Any) -> Any:
    chunks = how.pop("chunks")
    found = function(*(da.from_array(x, chunks=chunks[: x.ndim]) for x in (a, *b)), **how)
    return dask.compute(*found) if isinstance(found, tuple) else found.compute()


def _lazy_lu(a: NDArray, b: NDArray, how: dict[str, Any]) -> float:
    return lu_ratio(a, *_lazily(hetero_la.lu_factor, a, **how))


def _lazy_solve(a: NDArray, b: NDArray, how: dict[str, Any]) -> float:
    return solve_ratio(a, _lazily(hetero_la.solve, a, b, **how), b)


#: Function -> whether its matrix is square, or positive definite; and its error ratio.
RUNS: dict[str, tuple[bool, bool, Callable[[NDArray, NDArray, dict[str, Any]], float]]] = {
    "lu": (False, False, lambda a, b, how: lu_ratio(a, *hetero_la.lu_factor(a, **how))),
    "cholesky": (True, True, lambda a, b, how: cholesky_ratio(a, hetero_la.cholesky(a, **how))),
    "qr": (
        False, False,
        lambda a, b, how: explicit_qr_ratio(a, *hetero_la.qr(a, mode="economic", **how)),
    ),
    "solve": (True, False, lambda a, b, how: solve_ratio(a, hetero_la.solve(a, b, **how), b)),
    "inv": (True, False, _inverse_ratio),
    "lazy lu": (False, False, _lazy_lu),
    "lazy solve": (True, False, _lazy_solve),
}  # fmt: skip


@st.composite
def options(draw: Callable[..., Any]) -> dict[str, Any]:
    """Draw keyword arguments of a run."""
    how: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "nb": st.one_of(
                    st.integers(1, 60), st.lists(st.integers(5, 60), min_size=2, max_size=3)
                ),
                "lookahead": st.integers(0, 3),
                "ib": st.integers(1, 40),
                "panel": st.sampled_from(["auto", "cpu"]),
                "order": st.sampled_from(["right", "right", "left"]),
                "memory": st.integers(20_000, 600_000),
                "checkpoint": st.integers(1, 5),
                "inverse_bound": st.sampled_from([1.0, 10.0, 1e6]),
            },
        )
    )
    if isinstance(how.get("nb"), int) and draw(st.booleans()):
        how["coarse"] = how["nb"] * draw(st.integers(2, 4))
    return how


@pytest.mark.parametrize("name", RUNS)
@FEW
@given(data=st.data())
def test_a_few_runs(clusters: Clusters, name: str, data: Any) -> None:
    check(clusters, name, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RUNS)
@MANY
@given(data=st.data())
def test_many_runs(clusters: Clusters, name: str, data: Any) -> None:
    check(clusters, name, data)


def check(clusters: Clusters, name: str, data: Any) -> None:
    square, definite, ratio = RUNS[name]
    how = data.draw(options()) | {"client": clusters[data.draw(st.sampled_from([*clusters]))]}
    dtype, n = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(1, 150))
    if name.startswith("lazy"):
        how.pop("checkpoint", None)
        how["chunks"] = data.draw(st.tuples(st.integers(10, 90), st.integers(10, 90)))
    m = n if square else data.draw(st.integers(1, 150))
    a = positive(n, dtype=dtype) if definite else random(m, n, dtype)
    b, before = random(m, 3, dtype, seed=1), a.copy()
    try:
        assert ratio(a, b, how) < RATIO_LIMIT
    except InsufficientMemoryError:
        assert "memory" in how
    except ValueError as error:
        if not re.search(REFUSED, str(error)):
            raise
    assert np.array_equal(a, before)
