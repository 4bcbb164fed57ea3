"""What type checkers know of the public functions: test_typing.py has mypy read this."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import hetero_la
from hetero_la import AccuracyReport, CholeskyFactors, Cluster, LUFactors, QRFactors, Report
from hetero_la.checks.array_types import LazyArray, LazyCholesky, LazyLU

Array = NDArray[Any]


class OnGpu:
    """As `cupy.ndarray`."""

    device: Any

    def get(self) -> Array:
        raise NotImplementedError


class Tensor:
    """As `torch.Tensor` and `jax.Array`."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        raise NotImplementedError

    def __dlpack_device__(self) -> tuple[int, int]:
        raise NotImplementedError


class Blocks:
    """As `dask.array.Array`."""

    chunks: Any

    def compute(self) -> Array:
        raise NotImplementedError


def options_by_name(a: Array, cluster: Cluster, size: int) -> None:
    hetero_la.lu_factor(a, nb=size, ib=16, lookahead=2, panel="cpu", client=cluster)
    hetero_la.lu(a, nb="3x256+64", inverse_bound=1e3)
    hetero_la.qr(a, nb=[256, 64], qr_panel="cholesky", lookahead=None)
    hetero_la.plan("lu", (9, 9), np.float32, checkpoint=4, checkpoint_folder="saved")
    hetero_la.solve(a, a, assume_a="pos", nb=size)
    hetero_la.cho_factor(a, products="split")


def wrong_options(a: Array) -> None:
    hetero_la.lu_factor(a, nbb=3)  # type: ignore[call-overload]
    hetero_la.cholesky(a, lookahead="2")  # type: ignore[arg-type]
    hetero_la.qr_factor(a, panel="gpus")  # type: ignore[arg-type]
    hetero_la.solve(a, a, qr_panel="qr")  # type: ignore[arg-type]
    hetero_la.lu_factor(a, products="tf32")  # type: ignore[arg-type]
    hetero_la.solve(a, a, assume_a="positive")  # type: ignore[arg-type]
    hetero_la.inv(a, assume_a="banded")  # type: ignore[arg-type]
    hetero_la.slogdet(a, nbb=3)  # type: ignore[call-arg]
    hetero_la.plan("lu", (9, 9), lookahed=3)  # type: ignore[call-arg]
    hetero_la.cholesky("1 2")  # type: ignore[arg-type]
    hetero_la.inv(["1 2", "3 4"])  # type: ignore[arg-type]
    hetero_la.qr_factor(Blocks())  # type: ignore[arg-type]


def of_the_host(a: Array, numbers: list[list[float]], client: Any) -> None:
    factors = hetero_la.lu_factor(numbers, client=client)
    assert_type(factors, LUFactors[Array])
    lu, piv = factors
    assert_type(lu, Array)
    assert_type(hetero_la.lu_solve((lu, piv), numbers), Array)
    assert_type(factors.solve([1.0]), Array)
    assert_type(hetero_la.cho_factor(a).solve([1.0]), Array)
    assert_type(hetero_la.cho_factor(a), CholeskyFactors[Array])
    assert_type(hetero_la.cho_solve(hetero_la.cho_factor(a), a), Array)
    assert_type(hetero_la.qr_factor(a).multiply(a), Array)
    assert_type(hetero_la.solve(numbers, a), Array)
    assert_type(hetero_la.solve_with_report(a, a), tuple[Array, Report])
    assert_type(hetero_la.solve(a, a, report=True), tuple[Array, AccuracyReport])
    assert_type(
        hetero_la.lstsq(a, a, report=True), tuple[Array, Array, np.int64, Array, AccuracyReport]
    )
    assert_type(factors.report(a), AccuracyReport)
    assert_type(hetero_la.inv(a), Array)


def of_any_dtype(
    counts: NDArray[np.int64], plane: np.ndarray[tuple[int, int], np.dtype[np.float32]]
) -> None:
    """Integers become floats, and a matrix has vectors, too."""
    assert_type(hetero_la.inv(counts), Array)
    assert_type(hetero_la.solve(plane, counts), Array)
    assert_type(hetero_la.solve([counts, counts], np.float32(3)), Array)
    assert_type(hetero_la.lu_factor(plane).piv, Array)
    assert_type(hetero_la.det(plane), Any)


def by_flags(a: Array, flag: bool) -> None:
    assert_type(hetero_la.lu(a), tuple[Array, Array, Array])
    assert_type(hetero_la.lu(a, permute_l=True), tuple[Array, Array])
    assert_type(hetero_la.lu(a, flag), tuple[Array, ...])
    assert_type(hetero_la.qr(a, mode="economic"), tuple[Array, Array])
    assert_type(hetero_la.qr(a, mode="r"), tuple[Array])
    assert_type(hetero_la.qr(a, mode="raw"), tuple[tuple[Array, Array], Array])
    assert_type(hetero_la.qr(a, pivoting=True), tuple[Array, Array, Array])
    assert_type(hetero_la.qr_multiply(a, a), tuple[Array, Array])
    assert_type(hetero_la.lstsq(a, a), tuple[Array, Array, np.int64, Array])
    gels = hetero_la.lstsq(a, a, lapack_driver="gels")
    assert_type(gels, tuple[Array, Array, np.int64, Array | None])


def of_a_gpu(a: OnGpu) -> None:
    assert_type(hetero_la.lu_factor(a), LUFactors[OnGpu])
    assert_type(hetero_la.lu_factor(a).lu, OnGpu)
    assert_type(hetero_la.qr_factor(a), QRFactors[OnGpu])
    assert_type(hetero_la.qr_factor(a).r, OnGpu)
    assert_type(hetero_la.solve(a, a), OnGpu)
    assert_type(hetero_la.cholesky(a, lower=True), OnGpu)
    assert_type(hetero_la.lu_solve(hetero_la.lu_factor(a), a), OnGpu)
    assert_type(hetero_la.lu_factor(a).solve([1.0]), OnGpu)
    assert_type(hetero_la.cho_factor(a).solve(a), OnGpu)
    assert_type(hetero_la.lu(a), tuple[OnGpu, OnGpu, OnGpu])
    assert_type(hetero_la.qr(a, mode="raw"), tuple[tuple[OnGpu, OnGpu], OnGpu])
    assert_type(hetero_la.lstsq(a, a), tuple[OnGpu, OnGpu, np.int64, OnGpu])
    assert_type(hetero_la.det(a), Any)


def of_another_library(a: Tensor) -> None:
    assert_type(hetero_la.lu_factor(a), LUFactors[Tensor])
    assert_type(hetero_la.lu_factor(a).solve(a), Tensor)
    assert_type(hetero_la.cho_factor(a).solve([1.0]), Tensor)
    assert_type(hetero_la.qr_factor(a).r, Tensor)
    assert_type(hetero_la.solve(a, a), Tensor)
    assert_type(hetero_la.lu_solve(hetero_la.lu_factor(a), a), Tensor)
    assert_type(hetero_la.qr(a, mode="economic"), tuple[Tensor, Tensor])
    assert_type(hetero_la.lstsq(a, a), tuple[Tensor, Tensor, np.int64, Tensor])
    assert_type(hetero_la.det(a), Any)


def of_dask(a: Blocks, b: Array) -> None:
    assert_type(hetero_la.lu_factor(a), LazyLU[Blocks])
    assert_type(hetero_la.lu_factor(a).persist().solve(b), Blocks)
    assert_type(hetero_la.cho_factor(a), LazyCholesky[Blocks])
    assert_type(hetero_la.lu_factor(b).solve(a), Blocks)
    assert_type(hetero_la.cho_factor(b).solve(a), Blocks)
    assert_type(hetero_la.solve(a, b), Blocks)
    assert_type(hetero_la.solve(b, a), Blocks)
    assert_type(hetero_la.det(a), Blocks)
    x, _, rank, _ = hetero_la.lstsq(a, b)
    assert_type((x, rank), tuple[Blocks, Blocks])
    assert_type(hetero_la.lstsq(b, a), tuple[Blocks, Blocks, Blocks, Blocks | None])
    assert_type(hetero_la.lu_solve(hetero_la.lu_factor(a), b), Blocks)
    assert_type(hetero_la.cho_solve((b, True), a), Blocks)


def of_what_is_not_known(a: Any) -> None:
    """CuPy's arrays, where CuPy is not installed or has no types."""
    assert_type(hetero_la.solve(a, a), Any)
    assert_type(hetero_la.qr_factor(a).solve(a), Any)
    assert_type(hetero_la.lu_factor(a).solve(a), Any)
    q, r = hetero_la.qr(a)
    assert_type(q @ r, Any)


def lazy_results_are_what_the_protocols_say() -> None:
    from hetero_la.dask_arrays import LazyCholeskyFactors, LazyLUFactors

    lu: type[LazyLU[LazyArray]] = LazyLUFactors
    cholesky: type[LazyCholesky[LazyArray]] = LazyCholeskyFactors
    assert lu
    assert cholesky
