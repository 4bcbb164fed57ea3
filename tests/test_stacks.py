"""Arrays of more than two dimensions are stacks of matrices, as they are for SciPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import det, inv, lu, lu_factor, lu_solve, slogdet, solve
from hetero_la.api.stacks import over_stacks
from hetero_la.execution.execute import execute
from hetero_la.numerics.band_matrices import FEW
from hetero_la.testing.residuals import RATIO_LIMIT, lstsq_ratio
from tests.support import DTYPES, covering, host, random, with_dependent_rows

NB = 4
#: Leading dimensions; those with a zero hold no matrix.
BATCHES = [(3,), (1,), (2, 3), (2, 1, 2), (0,), (2, 0)]
LU_OPTIONS: list[dict[str, bool]] = [{}, {"permute_l": True}, {"p_indices": True}]


def stack(batch: tuple[int, ...], m: int, n: int, dtype: str = "float64", seed: int = 0) -> NDArray:
    """Matrices that all differ."""
    count = int(np.prod(batch))
    whole = random(count * m, n, dtype, seed) if count * m * n else np.zeros((count * m, n), dtype)
    return np.ascontiguousarray(whole).reshape(*batch, m, n)


def same(found: Any, expected: Any, *, values: bool = True) -> None:
    """Equal kinds, shapes, dtypes and, up to rounding, values."""
    if isinstance(expected, tuple | list):
        assert isinstance(found, tuple)
        for one, other in zip(found, expected, strict=True):
            same(one, other, values=values)
        return
    found = host(found)
    assert type(found) is type(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    single = expected.dtype in (np.float32, np.complex64)
    scale = np.abs(expected).max(initial=1)
    assert not values or np.allclose(found, expected, atol=(5e-3 if single else 1e-9) * scale)


# --- one matrix


@pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
@pytest.mark.parametrize(("m", "n"), [(5, 5), (5, 3), (3, 5), (1, 1), (0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("batch", BATCHES)
def test_lu_is_scipy_s(batch: tuple[int, ...], m: int, n: int, dtype: str) -> None:
    a = (stack(batch, m, n) * 9).astype(dtype) if dtype == "int32" else stack(batch, m, n, dtype)
    for options in LU_OPTIONS:
        same(lu(a, nb=NB, **options), scipy.linalg.lu(a, **options))
    if 0 not in batch:
        expected = scipy.linalg.lu_factor(a if a.size or dtype != "int32" else a.astype(float))
        same(lu_factor(a, nb=NB), tuple(expected))


@pytest.mark.parametrize(("batch", "n", "dtype"), covering(BATCHES, [0, 1, 6], DTYPES))
def test_functions_of_a_square_matrix_are_scipy_s(
    batch: tuple[int, ...], n: int, dtype: str
) -> None:
    a = stack(batch, n, n, dtype)
    same(inv(a, nb=NB), scipy.linalg.inv(a))
    same(det(a, nb=NB), scipy.linalg.det(a))
    found = slogdet(a, nb=NB)
    assert type(found) is hetero_la.SlogdetResult
    same(found, tuple(np.linalg.slogdet(a)))


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
def test_factors_of_no_matrix_have_the_shapes_of_others(batch: tuple[int, ...]) -> None:
    """Where SciPy gives up: shapes and dtypes are those of other stacks."""
    with pytest.raises(ValueError, match="zero-size batches"):
        scipy.linalg.lu_factor(stack(batch, 4, 3))
    packed, piv = lu_factor(stack(batch, 4, 3, "complex64"))
    assert (packed.shape, packed.dtype) == ((*batch, 4, 3), np.complex64)
    assert (piv.shape, piv.dtype) == ((*batch, 3), np.int32)
    x = lu_solve((stack(batch, 4, 4), np.zeros((*batch, 4), np.int32)), np.ones(4, np.float32))
    assert (x.shape, x.dtype) == ((*batch, 4), np.float64)


# --- two


@pytest.mark.parametrize(
    ("first", "second"),
    [("bool", "bool"), ("int8", "int16"), ("int8", "float32"), ("float16", "bool"), ("int32", "F")],
)
def test_systems_of_a_stack_have_the_dtype_of_one(first: str, second: str) -> None:
    a, b = np.tri(4)[None].astype(first), np.ones((1, 4, 2), second)
    for function in (hetero_la.solve, lambda a, b: hetero_la.lstsq(a, b)[0]):
        same(function(a, b), function(a[0], b[0])[None])


@pytest.mark.parametrize(("dtype", "other"), [("float64", "float64"), ("float32", "complex64")])
@pytest.mark.parametrize(
    ("first", "second"),
    [((3,), (5,)), ((2, 1), (5,)), ((3,), (5, 2)), ((), (3, 5, 2)), ((3,), (3, 5, 2)),
     ((3,), (1, 5, 0)), ((2, 1), (3, 5, 1)), ((2, 3), (2, 3, 5, 5))],
)  # fmt: skip
def test_leading_dimensions_are_broadcast(
    first: tuple[int, ...], second: tuple[int, ...], dtype: str, other: str
) -> None:
    a, b = stack(first, 5, 5, dtype), random(5 * 30, 1, other, seed=1)[: np.prod(second)]
    b = b.reshape(second)
    before = a.copy(), b.copy()
    same(solve(a, b, nb=NB, overwrite_b=True), scipy.linalg.solve(a, b))
    factors = scipy.linalg.lu_factor(a)
    for trans in (0, 1, 2):
        found = lu_solve(lu_factor(a, nb=NB), b, trans, overwrite_b=True)
        same(found, scipy.linalg.lu_solve(factors, b, trans))
    assert np.array_equal(a, before[0])
    assert np.array_equal(b, before[1])


@pytest.mark.parametrize(
    ("first", "second"),
    [((0,), (4,)), ((0,), (4, 2)), ((0,), (1, 4, 2)), ((), (0, 4, 2)), ((2, 1), (0, 4, 2))],
)
def test_solving_with_no_matrix(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = np.ones((*first, 4, 4)), np.ones(second, np.complex64)
    same(solve(a, b), scipy.linalg.solve(a, b))


def test_a_stack_of_vectors_is_a_matrix() -> None:
    a, b = stack((2,), 3, 3), np.ones((2, 3))
    for function in (solve, scipy.linalg.solve):
        with pytest.raises(ValueError, match=r"\(2, 3\)"):
            function(a, b)
    same(solve(a, b[..., None], nb=NB), scipy.linalg.solve(a, b[..., None]))


def test_stacks_that_cannot_be_paired() -> None:
    for function in (solve, scipy.linalg.solve):
        with pytest.raises(ValueError, match=r"stacks|shape mismatch"):
            function(np.ones((2, 3, 3)), np.ones((4, 3, 1)))
    with pytest.raises(ValueError, match=r"a of shape \(2, 3, 3\), b of shape \(4, 3, 1\)"):
        solve(np.ones((2, 3, 3)), np.ones((4, 3, 1)))


# --- what goes wrong


@pytest.mark.parametrize("function", [inv, lambda a: solve(a, np.ones(3))], ids=["inv", "solve"])
def test_one_singular_matrix_is_an_error(function: Callable[[NDArray], Any]) -> None:
    a = np.stack([np.eye(3), np.zeros((3, 3)), np.eye(3)])
    with pytest.raises(LinAlgError):
        scipy.linalg.inv(a)
    with pytest.raises(LinAlgError, match="diagonal number 1 of U") as caught:
        function(a)
    assert caught.value.__notes__ == ["This concerns matrix (1,) of a stack of shape (3,)."]


@pytest.mark.parametrize("singular", [True, False])
def test_warnings_point_here(singular: bool) -> None:
    a = np.zeros((14, 14)) if singular else scipy.linalg.hilbert(14)
    function: Callable[[NDArray], Any] = lu_factor if singular else inv
    for given in (a, np.stack([np.eye(14), a])):
        with pytest.warns(LinAlgWarning) as caught:
            function(given)
        assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(det(np.zeros((2, 3, 3))), scipy.linalg.det(np.zeros((2, 3, 3))))
        assert slogdet(np.zeros((1, 3, 3))).logabsdet[0] == -np.inf


@pytest.mark.parametrize("function", [lu_factor, lu, inv, det, slogdet])
def test_bad_stacks_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="infs or NaNs"):
        function(np.stack([np.eye(3), np.full((3, 3), np.nan)]))
    for shape in [(2, 3, 3), (0, 3, 3)]:
        with pytest.raises(ValueError, match="a has dtype object"):
            function(np.zeros(shape, object))
    with pytest.raises(TypeError, match="multiple values"):
        function(np.zeros((2, 3, 3)), a=np.zeros((2, 3, 3)))
    if function not in (lu_factor, lu):
        with pytest.raises(ValueError, match="square"):
            function(np.zeros((2, 3, 4)))


# --- the decorator


class Pair(NamedTuple):
    total: Any
    rank: Any


@over_stacks(a=2, b="1|2")
def several(a: Any, b: Any = None, overwrite_a: bool = False) -> Any:
    """One of each kind of result."""
    return (a.T, a.sum()), Pair(a[0], 3), b if b is None else b.ndim, overwrite_a


def test_results_of_every_kind_are_stacked() -> None:
    a = stack((2, 4), 3, 5)
    (turned, sums), pair, ndims, overwritten = several(a, b=np.ones((4, 2, 2)), overwrite_a=True)
    assert np.array_equal(turned, a.swapaxes(-1, -2))
    assert np.allclose(sums, a.sum(axis=(-1, -2)))
    assert type(pair) is Pair
    assert np.array_equal(pair.total, a[..., 0, :])
    assert np.array_equal(pair.rank, np.full((2, 4), 3))
    assert np.array_equal(ndims, np.full((2, 4), 2))
    assert not overwritten.any()  # a matrix may stand in several places
    assert several(a, [1.0])[2].max() == 1


def test_a_tuple_of_one_stays_one() -> None:
    a = stack((2,), 3, 3)
    (found,) = over_stacks(a=2)(lambda a: (np.triu(a),))(a)
    same(found, np.triu(a))
    for given in (a, a[0]):  # as in SciPy from 1.18 on
        (r,) = hetero_la.qr(given, mode="r", nb=NB)
        assert r.shape == given.shape


@pytest.mark.parametrize(
    "given", [np.eye(3), [[1.0, 2.0]], np.ones(3), 1.0, None],
    ids=["matrix", "list", "vector", "number", "None"],
)  # fmt: skip
def test_plain_input_goes_through_as_it_is(given: Any) -> None:
    assert over_stacks(a=2)(lambda a: a)(given) is given


def test_calls_with_other_arguments_say_what_python_says() -> None:
    a = stack((3,), 4, 4)
    for call, message in (
        (lambda: solve(a), "missing a required argument: 'b'"),
        (lambda: inv(a, False, True, 3), "too many positional arguments"),
        (lambda: solve(a, a, a=a), "multiple values for argument 'a'"),
        (lambda: solve(a, a, what=1), "there is no option 'what'"),
        (lambda: solve(a, a, True, lower=True), "multiple values for argument 'lower'"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_stacks_on_a_gpu(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    a, b = stack((2, 3), 40, 40, dtype), stack((3,), 40, 2, dtype, seed=1)
    given, right = cupy.asarray(a), cupy.asarray(b)
    factors = lu_factor(given, nb=16)
    for found, expected in [
        (factors, tuple(scipy.linalg.lu_factor(a))),
        (lu(given, nb=16), scipy.linalg.lu(a)),
        (lu_solve(factors, right, overwrite_b=True), np.linalg.solve(a, b)),
        (solve(given, right, nb=16), np.linalg.solve(a, b)),
        (inv(given, nb=16), np.linalg.inv(a)),
        (det(given, nb=16), scipy.linalg.det(a)),
        (slogdet(given, nb=16), tuple(np.linalg.slogdet(a))),
        (det(given[:0]), scipy.linalg.det(a[:0])),
        (lu(given[:0]), scipy.linalg.lu(a[:0])),
    ]:
        arrays = found if isinstance(found, tuple) else (found,)
        assert all(type(array) is cupy.ndarray for array in arrays)
        same(found, expected)
    assert np.array_equal(host(right), b)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "order", "dtype"), covering([1, 5, 33, 200], "CFT", DTYPES))
def test_batched_routines_on_a_gpu(
    n: int, order: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any memory order, and none of the matrices is looked at alone."""
    cupy = pytest.importorskip("cupy")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a run for one matrix")

    for module in ("lu", "solve", "cholesky", "qr"):
        monkeypatch.setattr(f"hetero_la.api.{module}.execute", fail)
    a = stack((4,), n, n, dtype) + 4 * np.sqrt(n) * np.eye(n, dtype=dtype)
    s, b = a @ a.conj().swapaxes(1, 2), stack((4,), n, 3, dtype, seed=1)

    def device(given: NDArray) -> Any:
        if order == "C":
            return cupy.asarray(given)
        if order == "F":
            return cupy.asarray(np.ascontiguousarray(given.swapaxes(1, 2))).swapaxes(1, 2)
        return cupy.asarray(np.ascontiguousarray(given[:, ::-1, ::-1]))[:, ::-1, ::-1]

    given, right = device(a), device(b)
    factors = lu_factor(given)
    same(factors, tuple(scipy.linalg.lu_factor(a)))
    same(lu(given), scipy.linalg.lu(a))
    for trans in (0, 1, 2):
        expected = scipy.linalg.lu_solve(scipy.linalg.lu_factor(a), b, trans)
        same(lu_solve(factors, right, trans), expected)
    same(solve(given, right), np.linalg.solve(a, b))
    same(inv(given), np.linalg.inv(a))
    same(slogdet(given), tuple(np.linalg.slogdet(a)))
    for lower in (False, True):
        half = device(np.tril(s) if lower else np.triu(s))
        same(hetero_la.cholesky(half, lower=lower), scipy.linalg.cholesky(s, lower=lower))
        for assume in ("pos", "her"):
            found = solve(half, right, assume_a=assume, lower=lower)  # type: ignore[call-overload]
            same(found, np.linalg.solve(s, b))
        c, _ = hetero_la.cho_factor(half, lower=lower)
        same(hetero_la.cho_solve((c, lower), right), np.linalg.solve(s, b))


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "order", "dtype"), covering([1, 32, 33, 128], "CF", DTYPES))
def test_one_small_matrix_on_a_gpu_is_a_stack_of_one(
    n: int, order: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = pytest.importorskip("cupy")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a run")

    for module in ("lu", "solve", "cholesky", "determinant"):
        monkeypatch.setattr(f"hetero_la.api.{module}.execute", fail)
    a = stack((), n, n, dtype) + float(4 * np.sqrt(n)) * np.eye(n, dtype=dtype)
    s, b = a @ a.conj().T, stack((), n, 3, dtype, seed=1)
    given, definite = (cupy.asarray(x, order=order) for x in (a, s))
    for right in (b, b[:, 0]):
        same(solve(given, cupy.asarray(right)), np.linalg.solve(a, right))
        found = solve(definite, cupy.asarray(right), assume_a="pos")
        same(found, np.linalg.solve(s, right))
    same(inv(given), np.linalg.inv(a))
    factors = lu_factor(given)
    same(tuple(factors), tuple(scipy.linalg.lu_factor(a)))
    assert factors.plan.routine == "lu"
    assert factors.timing.seconds > 0
    same(factors.solve(cupy.asarray(b)), np.linalg.solve(a, b))
    for lower in (False, True):
        c = hetero_la.cho_factor(definite, lower=lower)
        same(hetero_la.cho_solve(c, cupy.asarray(b)), np.linalg.solve(s, b))
        triangle = hetero_la.cholesky(definite, lower=lower)
        same(triangle, scipy.linalg.cholesky(s, lower))
        assert triangle.flags.f_contiguous == lower or n == 1
    exact = a.astype("c16" if np.iscomplexobj(a) else "f8")  # in single precision it overflows
    numbers = (det(given), *slogdet(given))
    known = (scipy.linalg.det(exact), *np.linalg.slogdet(a))
    for found, expected in zip(numbers, known, strict=True):
        assert type(found) is type(expected)
        assert np.isclose(found, expected, rtol=1e-9 if dtype in DTYPES[1::2] else 1e-3)


@pytest.mark.gpu
def test_one_small_matrix_that_is_not_regular_is_treated_as_a_larger_one() -> None:
    cupy = pytest.importorskip("cupy")
    a, b = cupy.eye(20), cupy.ones(20)
    a[3, 3] = 0
    with pytest.raises(LinAlgError, match="diagonal number 4 of U") as error:
        solve(a, b, assume_a="gen")
    assert not hasattr(error.value, "__notes__")
    with pytest.raises(LinAlgError, match="not positive definite"):
        hetero_la.cholesky(a)
    assert det(a) == 0
    with pytest.warns(LinAlgWarning, match="Diagonal number 4 is exactly zero"):
        assert lu_factor(a).info == 4
    a[3, 3] = 1e-20
    with pytest.warns(LinAlgWarning, match="ill-conditioned"):
        same(solve(a, b, assume_a="gen")[:3], np.ones(3))
    a[3, 3] = np.nan
    for call in (solve, lambda a, b: lu_factor(a), lambda a, b: inv(a), lambda a, b: det(a)):
        with pytest.raises(ValueError, match="infs or NaNs"):
            call(a, b)
    with pytest.raises(ValueError, match="Shape mismatch"):
        solve(cupy.eye(20), b[:7])
    with pytest.raises(TypeError, match="there is no option 'lower'"):
        det(cupy.eye(20), lower=True)
    assert float(hetero_la.cholesky(cupy.asarray(4.0))[0, 0]) == 2
    assert solve(cupy.eye(20), b, client=None, report=True)[1].rcond == 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "mode", "dtype"),
    covering(
        [(7, 7), (70, 33), (33, 70), (300, 40), (512, 512)], ["full", "economic", "r"], DTYPES
    ),
)
def test_batched_qr_on_a_gpu(shape: tuple[int, int], mode: Any, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    a = stack((3,), *shape, dtype)
    expected = [scipy.linalg.qr(one, mode=mode) for one in a]
    found = hetero_la.qr(cupy.asarray(a), mode=mode)
    if mode == "r":
        expected = [one if isinstance(one, tuple) else (one,) for one in expected]
    same(found, tuple(np.stack(parts) for parts in zip(*expected, strict=True)))
    (packed, tau), r = hetero_la.qr(cupy.asarray(a), mode="raw")
    raw = [scipy.linalg.qr(one, mode="raw") for one in a]
    same(packed, np.stack([one[0][0] for one in raw]))
    same(tau, np.stack([one[0][1] for one in raw]))
    same(r, np.stack([one[1] for one in raw]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (40, 20), (20, 40)])
def test_least_squares_of_full_rank(
    shape: tuple[int, int], columns: int | None, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def counted(routine: str, *args: Any, **kwargs: Any) -> Any:
        runs.append(routine)
        return execute(routine, *args, **kwargs)

    monkeypatch.setattr("hetero_la.api.lstsq.execute", counted)
    a, b = stack((2, 3), *shape, dtype), stack((2, 3), shape[0], columns or 1, dtype, seed=1)
    b = b if columns else b[0, 0, :, 0]
    found = hetero_la.lstsq(a, b, lapack_driver="gels")
    assert bool(runs) is (shape[0] < shape[1])  # one after the other
    assert found[3] is None
    for index in np.ndindex(2, 3):
        one = hetero_la.lstsq(a[index], b[index] if columns else b, lapack_driver="gels")
        for part, expected in zip(found[:3], one[:3], strict=True):
            same(np.asarray(part[index]), np.asarray(expected))


def test_least_squares_of_a_stack_without_full_rank() -> None:
    a, b = stack((5,), 9, 6), stack((5,), 9, 2, seed=1)
    a[2, :, 4] = a[2, :, 1] + 1e-17
    with pytest.warns(LinAlgWarning, match="rank-deficient matrix"):
        rank = hetero_la.lstsq(a, b, lapack_driver="gels")[2]
    assert rank.tolist() == [6, 6, 5, 6, 6]
    a[3, :, 0] = 0
    with (
        pytest.raises(LinAlgError, match="exactly zero") as error,
        pytest.warns(LinAlgWarning),
    ):
        hetero_la.lstsq(a, b, lapack_driver="gels")
    assert error.value.__notes__ == ["This concerns matrix (3,) of a stack of shape (5,)."]
    a[3] = np.nan
    with pytest.raises(ValueError, match="must not contain infs or NaNs"):
        hetero_la.lstsq(a[3:], b[3:], lapack_driver="gels")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "columns", "driver", "dtype"),
    covering(
        [(1, 1), (7, 7), (70, 33), (33, 70), (300, 40), (256, 200)], [None, 1, 3],
        ["gelsd", "gelss", "gels"], DTYPES,
    ),
)  # fmt: skip
def test_batched_least_squares_on_a_gpu(
    shape: tuple[int, int], columns: int | None, driver: Any, dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cupy = pytest.importorskip("cupy")

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a run for one matrix")

    monkeypatch.setattr("hetero_la.api.lstsq.execute", fail)
    monkeypatch.setattr("hetero_la.api.qr.execute", fail)
    a, b = stack((7,), *shape, dtype), stack((7,), shape[0], columns or 1, dtype, seed=1)
    b = b if columns else b[0, :, 0]
    expected = [
        scipy.linalg.lstsq(one, b[i] if columns else b, lapack_driver="gelss")
        for i, one in enumerate(a)
    ]
    for given in (cupy.asarray(a), cupy.asarray(np.asfortranarray(a))):
        x, residues, rank, s = hetero_la.lstsq(given, cupy.asarray(b), lapack_driver=driver)
        assert all(type(array) is cupy.ndarray for array in (x, residues, rank))
        assert (s is None) == (driver == "gels")
        assert host(rank).tolist() == [min(shape)] * 7
        for i, (right, squares, _, values) in enumerate(expected):
            own = b[i] if columns else b
            assert x.dtype == dtype
            residual = own - a[i] @ host(x[i])
            assert lstsq_ratio(a[i], host(x[i]), own) < RATIO_LIMIT
            if shape[0] < shape[1]:
                same(host(x[i]), right)
            assert residues[i].shape == np.shape(squares)
            if shape[0] > shape[1]:
                exact = (abs(residual) ** 2).sum(axis=0)
                assert np.allclose(host(residues[i]), exact, rtol=1e-3)
            if s is not None:
                eps = np.finfo(dtype).eps
                # LAPACK's own tests of singular values allow 50.
                assert np.abs(host(s[i]) - values).max() < 50 * eps * values[0]
                assert s.dtype == values.dtype


@pytest.mark.gpu
def test_stacks_of_least_squares_on_a_gpu_with_any_rank() -> None:
    cupy = pytest.importorskip("cupy")
    a, b = stack((2, 2), 30, 12), stack((2, 2), 30, 2, seed=1)
    a[0, 1, :, 3] = a[0, 1, :, 4] * (1 + 1e-14)
    a[1, 0] *= 1e-300
    a[1, 1, :, 5] *= 1e-200
    for driver in ("gelsd", "gelss", "gelsy"):
        found = hetero_la.lstsq(cupy.asarray(a), cupy.asarray(b), 1e-12, lapack_driver=driver)
        expected = hetero_la.lstsq(a, b, 1e-12, lapack_driver=driver)
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            for index in np.ndindex(2, 2) if other is not None else ():
                scale = np.abs(np.nan_to_num(other[index])).max(initial=0)
                assert np.allclose(
                    host(one)[index], other[index], atol=1e-9 * scale, equal_nan=True
                )
    with pytest.warns(LinAlgWarning, match="rank-deficient"):
        rank = hetero_la.lstsq(cupy.asarray(a), cupy.asarray(b), 1e-12, lapack_driver="gels")[2]
    assert host(rank)[0, 0] == 12 > host(rank)[0, 1]
    with pytest.raises(ValueError, match="infs or NaNs"):
        hetero_la.lstsq(cupy.asarray(a * np.nan), cupy.asarray(b))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_nearly_singular_matrices_are_looked_at_alone_on_a_gpu(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    eps = np.finfo(dtype).eps
    a = np.stack([np.eye(40, dtype=dtype)] * 4)
    for i, rcond in enumerate((1, 4 * eps, eps / 100, 100 * eps)):
        a[i] *= np.geomspace(1, rcond, 40).astype(dtype)
    given, b = cupy.asarray(a), cupy.ones((4, 40), dtype)[:, :, None]
    for call in (lambda: solve(given, b), lambda: inv(given),
                 lambda: solve(given, b, assume_a="pos")):  # fmt: skip
        with pytest.warns(LinAlgWarning, match="ill-conditioned") as caught:
            found = host(call())
        assert len(caught) == 1
        ones = found.sum(axis=2) * a.diagonal(axis1=1, axis2=2)
        assert np.allclose(ones, 1, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_solutions_of_stacks_on_a_gpu_are_accurate(dtype: str) -> None:
    """In units of rounding, where few right-hand sides are refined and where many are not."""
    cupy = pytest.importorskip("cupy")
    a = stack((5,), 130, 130, dtype)
    a[1] = np.tril(-np.ones((130, 130)), -1) + np.eye(130)  # whose factors grow
    a[1, :, -1] = 1
    a[1] += a[2] / 100
    for nrhs, limit in ((2, 3), (3, 30), (40, 30)):
        b = stack((5,), 130, nrhs, dtype, seed=nrhs)
        x = host(solve(cupy.asarray(a), cupy.asarray(b))).astype(np.complex128)
        left = np.abs(b - a.astype(np.complex128) @ x).sum(axis=1)
        size = np.abs(a).sum(axis=1).max(axis=1)[:, None] * np.abs(x).sum(axis=1)
        assert (left <= limit * size * np.finfo(dtype).eps / 2).all()


@pytest.mark.gpu
@pytest.mark.filterwarnings("error::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("n", [3, 32, 90])
def test_rows_that_depend_on_each_other_are_noticed_on_a_gpu(n: int) -> None:
    cupy = pytest.importorskip("cupy")
    for a in with_dependent_rows(n):
        with pytest.raises((LinAlgError, LinAlgWarning)):
            solve(cupy.asarray(a[None]), cupy.ones((1, n, 1)))


@pytest.mark.gpu
def test_uncertain_matrices_on_a_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    a = stack((5,), 20, 20) + 20 * np.eye(20)
    a[3, :, 7] = 0
    given = cupy.asarray(a)
    with pytest.warns(LinAlgWarning, match="Diagonal number 8 is exactly zero") as caught:
        found = lu_factor(given)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(found, tuple(scipy.linalg.lu_factor(a)))
    same(det(given), scipy.linalg.det(a))
    for function in (inv, lambda a: solve(a, cupy.ones(20))):
        with pytest.raises(LinAlgError, match="diagonal number 8 of U") as error:
            function(given)
        assert error.value.__notes__ == ["This concerns matrix (3,) of a stack of shape (5,)."]
    with pytest.raises(LinAlgError, match="not positive definite"):
        hetero_la.cholesky(cupy.asarray(-a))
    given[3] = cupy.diag(10.0 ** -cupy.arange(20))
    with pytest.warns(LinAlgWarning, match="ill-conditioned") as caught:
        x = solve(given, given)
    assert len(caught) == 1
    same(x, np.broadcast_to(np.eye(20), (5, 20, 20)).copy())
    given[1] *= 1e-300
    same(hetero_la.qr(given, mode="r")[0], np.stack([np.linalg.qr(g)[1] for g in host(given)]))
    given[2, 3, 3] = np.nan
    for call in (solve, lambda a, b: lu_factor(a), lambda a, b: hetero_la.qr(a)):
        with pytest.raises(ValueError, match="infs or NaNs"):
            call(given, given)


def test_bands_of_large_matrices_are_not_taken_for_tridiagonal_ones() -> None:
    n = FEW + 1
    a = np.triu(np.tril(random(n), 2), -2) + 9 * np.eye(n)
    b = random(n, 2, seed=1)
    x = solve(np.stack([a, 2 * a]), b, assume_a="banded")
    for matrix, found in zip((a, 2 * a), x, strict=True):
        same(found, solve(matrix, b, assume_a="banded"))
