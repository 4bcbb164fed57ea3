"""What SciPy's users rely on beyond numbers: dtypes, scalars, overwriting, signatures, messages."""

from __future__ import annotations

import inspect
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy
import scipy.linalg
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import Cluster, cho_factor, cholesky, det, inv, lstsq, lu, lu_factor, qr, solve
from tests.scipy_swap import OURS
from tests.support import DTYPES, assert_close, host, positive, random

NB = 8
#: The type in which SciPy works on one array, by NumPy's letters.
WORKED_ON_IN = {
    **dict.fromkeys("?bBhHef", "float32"), **dict.fromkeys("iIlLqQdg", "float64"),
    "F": "complex64", **dict.fromkeys("DG", "complex128"),
}  # fmt: skip
#: Functions of one matrix, and which of their results has its dtype.
FUNCTIONS = {
    "lu_factor": 0, "lu": 2, "inv": None, "cholesky": None, "cho_factor": 0, "qr": 1,
}  # fmt: skip


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> ModuleType:
    return pytest.importorskip(request.param)


# --- dtypes


@pytest.mark.parametrize("letter", WORKED_ON_IN)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_dtype_is_worked_on_in_scipy_s(name: str, letter: str, xp: ModuleType) -> None:
    if letter in "gG" and xp is not np:
        pytest.skip("CuPy has no long double")
    a, part = np.array([[5, 1], [1, 3]]).astype(letter), FUNCTIONS[name]
    if letter == "?":
        a = np.eye(2, dtype=bool)

    def result(function: Callable[[Any], Any], a: Any) -> Any:
        found = function(a)
        return found if part is None else found[part]

    found = host(result(OURS[name], xp.asarray(a)))
    assert found.dtype == WORKED_ON_IN[letter]
    assert_close(found, host(result(OURS[name], xp.asarray(a.astype(WORKED_ON_IN[letter])))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert result(getattr(scipy.linalg, name), a).dtype == found.dtype


@pytest.mark.parametrize("first", ["?", "b", "e", "i", "Q", "f", "F", "G"])
@pytest.mark.parametrize("second", ["?", "h", "e", "L", "f", "g", "d", "F"])
def test_systems_have_a_common_dtype(first: str, second: str) -> None:
    a, b = np.eye(3).astype(first), np.ones(3).astype(second)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        expected = scipy.linalg.solve(a, b).dtype
    for found in (
        solve(a, b), solve(a, b, assume_a="pos"), solve(a, b, assume_a="upper triangular"),
        lstsq(a, b)[0], solve(da.from_array(a), b),
    ):  # fmt: skip
        assert found.dtype == expected
    assert hetero_la.lu_solve(lu_factor(a), b).dtype == np.result_type(
        WORKED_ON_IN[first], WORKED_ON_IN[second]
    )


@pytest.mark.parametrize("letter", ["?", "b", "e", "l", "g", "G"])
def test_dtypes_of_dask_arrays(letter: str) -> None:
    a = da.from_array(np.eye(4).astype(letter), chunks=2)
    for found in (lu_factor(a)[0], inv(a), cholesky(a), qr(a)[1]):
        assert found.dtype == found.compute().dtype == WORKED_ON_IN[letter]
    with pytest.raises(TypeError, match="a has dtype object"):
        inv(a.astype(object))


def test_determinants_are_double() -> None:
    for letter, worked in WORKED_ON_IN.items():
        found = det(2 * np.eye(3).astype(letter))
        assert found.dtype == ("complex128" if worked.startswith("c") else "float64")


# --- numbers in the place of matrices


@pytest.mark.parametrize("a", [2, [2], [[2.0]], np.int8(2), np.full((1, 1), 2, "f4")])
@pytest.mark.parametrize("b", [4, [4.0], [4, 6, 8], [[4, 6]], np.ones((3, 2), "F")])
def test_a_number_divides_right_hand_sides(a: Any, b: Any, xp: ModuleType) -> None:
    found = host(solve(xp.asarray(a), xp.asarray(b)))
    expected = np.atleast_1d(np.asarray(b)) / 2
    assert found.shape == expected.shape
    assert np.allclose(found, expected)
    like = np.eye(2, dtype=np.asarray(a).dtype), np.ones(2, np.asarray(b).dtype)
    assert found.dtype == solve(*like).dtype


@pytest.mark.parametrize("b", [[4.0], [[4.0, 6.0]]])
def test_a_matrix_of_one_number_is_a_matrix_where_the_right_hand_sides_fit(
    b: Any, xp: ModuleType
) -> None:
    a, b = xp.asarray([[-2.0]]), xp.asarray(b)
    for pivot, message in (
        ("partial", "diagonal number 1 of U"),
        ("none", "pivot 1 is zero in step 0"),
    ):
        with pytest.raises(LinAlgError, match=message):
            solve(0 * a, b, pivot=pivot)
    with pytest.raises(LinAlgError, match="1-th leading minor"):
        solve(a, b, assume_a="pos")
    for number, right in ((a[0], b), (a, xp.ones(2)), (a, xp.ones((2, 1))), (a, xp.ones(()))):
        found = host(solve(number, right, assume_a="pos"))
        assert np.array_equal(found, np.atleast_1d(host(right)) / -2)
    with pytest.raises(ValueError, match="b must have 1 or 2 dimensions"):
        solve(xp.ones((0, 0)), xp.ones(()))


def test_a_number_that_solves_nothing(xp: ModuleType) -> None:
    for b in (0, 1, [0, 1], [[1, 2]]):
        for a in (0, [[0]], np.zeros((1, 1))):
            with pytest.raises(LinAlgError, match="singular"):
                solve(xp.asarray(a), xp.asarray(b))
    with pytest.raises(ValueError, match="b: array must not contain infs"):
        solve(2, [1, np.nan])
    with pytest.raises(NotImplementedError, match=r"scipy\.linalg\.solve can currently not"):
        solve(2j, [1, 2], transposed=True)
    with pytest.raises(TypeError, match="no option 'nbb'"):
        solve(2, [1, 2], nbb=3)


# --- overwriting


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", [None, "sym", "her", "pos", "tridiagonal"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("nrhs", [1, 20])
def test_solving_in_place(
    dtype: str, structure: str | None, transposed: bool, order: Any, nrhs: int, xp: ModuleType
) -> None:
    if transposed and dtype.startswith("c"):
        pytest.skip("refused, as in SciPy")
    full = positive(29, dtype) if structure in ("her", "pos") else random(29, dtype=dtype)
    full = {"sym": full + full.T, "tridiagonal": np.triu(np.tril(full, 1), -1)}.get(
        str(structure), full
    )
    full += 29 * np.eye(29, dtype=dtype)
    a = xp.array(full, order=order)
    b = xp.array(random(29, nrhs, dtype, seed=1), order=order)
    before = a.copy(), host(b)
    x = solve(a, b, assume_a=structure, transposed=transposed, nb=NB)
    assert bool((a == before[0]).all())
    found = solve(a, b, overwrite_a=True, overwrite_b=True, assume_a=structure,
                  transposed=transposed, nb=NB)  # fmt: skip
    assert (found is b) == (b.flags.f_contiguous)
    assert_close(found, host(x), limit=1e-3 if dtype in ("float32", "complex64") else 1e-11)
    worked_in = order == "F" and structure in (None, "sym", "her")
    if structure == "pos":  # the upper triangle is the lower one of the transpose
        worked_in = order == "C" and xp is np
    assert bool((a == before[0]).all()) != worked_in


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "lower"), [("C", False), ("F", True)])
@pytest.mark.parametrize("n", [29, 300])
def test_cholesky_in_place_reads_one_triangle(dtype: str, order: Any, lower: bool, n: int) -> None:
    full, b = positive(n, dtype), random(n, 3, dtype, seed=1)
    a = np.array(full, order=order)
    a[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = 7
    expected, before = np.linalg.solve(full, b), a.copy()
    x = solve(a, b, lower=lower, overwrite_a=True, assume_a="pos", nb=NB)
    assert_close(x, expected, limit=1e-3 if dtype in ("float32", "complex64") else 1e-10)
    assert not np.array_equal(a, before)
    kept = before.copy()
    solve(kept, b, lower=lower, overwrite_a=True, assume_a="pos", report=True)
    assert np.array_equal(kept, before)
    with pytest.raises(LinAlgError, match="leading minor"):
        solve(-before, b, lower=lower, overwrite_a=True, assume_a="pos")


def test_what_may_not_be_overwritten_is_not() -> None:
    full, b = random(29), random(29, 2, seed=1)
    expected = solve(full, b)
    for given in (full[::-1], np.asfortranarray(full)):
        a, right = given.view(), b.view()
        a.flags.writeable = right.flags.writeable = False
        found = solve(a, right, overwrite_a=True, overwrite_b=True)
        assert not np.shares_memory(found, right)
    assert_close(found, expected)
    assert inv(a, overwrite_a=True).flags.writeable
    whole = full.astype(int)
    assert_close(solve(whole + 29 * np.eye(29, dtype=int), b, overwrite_a=True),
                 solve(whole + 29.0 * np.eye(29), b))  # fmt: skip


@pytest.mark.parametrize("panel", ["cpu", "gpu"])
@pytest.mark.parametrize("transposed", [False, True])
def test_factors_that_stay_with_workers_leave_the_matrix_alone(
    panel: str, transposed: bool
) -> None:
    a, b = random(60), random(60, 2, seed=1)
    given = a.copy("F")
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        x = solve(given, b, overwrite_a=True, transposed=transposed, client=cluster, panel=panel,
                  nb=16)  # fmt: skip
    assert_close(x, np.linalg.solve(a.T if transposed else a, b))
    assert np.array_equal(given, a)


def test_solving_in_place_complains_as_ever(xp: ModuleType) -> None:
    a = random(20)
    a[:, 7] = 0
    with pytest.raises(LinAlgError, match="diagonal number 8 of U"):
        solve(xp.asarray(a, order="F"), xp.ones(20), overwrite_a=True, nb=NB)
    with pytest.warns(LinAlgWarning, match="ill-conditioned") as caught:
        solve(xp.asarray(scipy.linalg.hilbert(20), order="F"), xp.ones(20), overwrite_a=True)
    assert [w.filename for w in caught] == [__file__]
    assert solve(xp.zeros((0, 0)), xp.zeros((0, 2)), overwrite_a=True).shape == (0, 2)
    assert solve(xp.eye(2, order="F"), xp.zeros((2, 0)), overwrite_a=True).shape == (2, 0)


def test_overwriting_saves_a_copy_of_the_matrix() -> None:
    def peak(function: Callable[..., Any], *arguments: Any, **options: Any) -> float:
        given = [np.array(argument, order="F") for argument in arguments]
        tracemalloc.start()
        function(*given, **options)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most / given[0].nbytes

    a, b = positive(1000), random(1000, 2, seed=1)
    for function, arguments in ((solve, (a, b)), (inv, (a,)), (cholesky, (a,)), (lu_factor, (a,))):
        function(*arguments)  # what is loaded and planned once
    for function, arguments, saved in [
        (solve, (a, b), 0.9), (inv, (a,), 0.6), (cholesky, (a,), 0.6), (lu_factor, (a,), 0.9),
    ]:  # fmt: skip
        in_place = peak(function, *arguments, overwrite_a=True)
        assert in_place < peak(function, *arguments) - saved


@pytest.mark.parametrize("structure", [None, "sym", "pos", "diagonal", "upper triangular"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_inverting_in_place(structure: str | None, order: Any, xp: ModuleType) -> None:
    full = positive(29)
    full = {"diagonal": np.diag(np.diag(full)), "upper triangular": np.triu(full)}.get(
        str(structure), full
    )
    a = xp.array(full, order=order)
    found = inv(a, overwrite_a=True, assume_a=structure, nb=NB)
    assert_close(host(found) @ full, np.eye(29))
    assert (found is a) == (order == "F")
    assert order == "F" or np.array_equal(host(a), full)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_inverse_of_rows_across_the_range_is_right(dtype: str, xp: ModuleType) -> None:
    a, most = random(29, dtype=dtype), np.finfo(dtype).maxexp - 20
    powers = np.linspace(-most, most, 29).astype(int)
    rows = np.ldexp(1.0, powers).astype(a.real.dtype)
    with pytest.warns(LinAlgWarning, match="rcond = 0"):
        found = host(inv(xp.asarray(a * rows[:, None]), nb=NB))
    assert_close(a @ (found * rows), np.eye(29, dtype=dtype))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_determinant_may_use_memory_of_either_order(order: Any, xp: ModuleType) -> None:
    full = random(29)
    a = xp.array(full, order=order)
    assert np.isclose(float(det(a, overwrite_a=True, nb=NB)), np.linalg.det(full))
    assert not np.array_equal(host(a), full)


# --- arguments


@pytest.mark.parametrize("name", OURS)
def test_arguments_have_scipy_s_names_order_and_defaults(name: str) -> None:
    theirs = inspect.signature(getattr(scipy.linalg, name)).parameters.values()
    ours = list(inspect.signature(OURS[name]).parameters.values())
    for own, other in zip(ours, theirs, strict=False):
        assert (own.name, own.kind) == (other.name, other.kind)
        if own.name != "lwork":  # SciPy 1.18 marks it as deprecated by its default
            assert own.default == other.default
    assert len(ours) > len(theirs) or name in ("lu_solve", "cho_solve")
    assert all(extra.kind.name in ("KEYWORD_ONLY", "VAR_KEYWORD") for extra in ours[len(theirs) :])


class ArrayLike:
    """Something that NumPy can make an array of."""

    def __init__(self, a: NDArray) -> None:
        self.a = a

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return self.a if dtype is None else self.a.astype(dtype)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", OURS)
def test_anything_that_is_like_an_array_gives_plain_writable_arrays(name: str) -> None:
    a = positive(4)
    read_only = a.copy()
    read_only.flags.writeable = False
    expected = called(name, a)
    for given in (a.tolist(), tuple(map(tuple, a)), np.matrix(a), ArrayLike(a), memoryview(a),
                  read_only, a[::-1][::-1], a.astype(">f8"), a.view(np.recarray)):  # fmt: skip
        found = called(name, given)
        for one, other in zip(flat(found), flat(expected), strict=True):
            if isinstance(other, np.ndarray):
                assert type(one) is np.ndarray
                assert one.flags.writeable
                assert one.dtype.isnative
            assert np.allclose(one, other)


def called(name: str, a: Any) -> Any:
    """What a function of SciPy's makes of a positive definite matrix of order 4."""
    if name in ("solve", "lstsq"):
        return OURS[name](a, [1, 2, 3, 4])
    if name == "lu_solve":
        return OURS[name]((a, [0, 1, 2, 3]), [1, 2, 3, 4])
    return OURS[name]((a, True), [1, 2, 3, 4]) if name == "cho_solve" else OURS[name](a)


def flat(result: Any) -> list[Any]:
    return [part for part in result if part is not None] if isinstance(result, tuple) else [result]


# --- messages

ZEROS, WIDE = np.zeros((2, 2)), np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (partial(solve, ZEROS, [1, 2]), LinAlgError, "A singular matrix detected"),
        (partial(inv, ZEROS), LinAlgError, "singular matrix"),
        (partial(solve, ZEROS, [1, 2], assume_a="diagonal"), LinAlgError, "singular"),
        (partial(solve, ZEROS, [1, 2], assume_a="pos"), LinAlgError, "singular or indefinite"),
        (partial(cholesky, -np.eye(2)), LinAlgError, "leading minor .* not positive definite"),
        (partial(cholesky, -np.eye(2)), LinAlgError, r"Internal potrf return info = \[1\]"),
        (partial(cho_factor, WIDE), ValueError, "^Expected a square matrix or batch"),
        (partial(det, WIDE), ValueError, "Last 2 dimensions of the array must be square"),
        (partial(det, [1.0, 2.0]), ValueError, "at least two-dimensional"),
        (partial(lu, [1.0, 2.0]), ValueError, "at least two-dimensional"),
        (partial(inv, [[np.nan]]), ValueError, "array must not contain infs or NaNs"),
        (partial(lstsq, np.eye(2), [1, 2, 3]), ValueError, "Shape mismatch"),
        (partial(solve, np.eye(2), [1, 2], assume_a="x"), ValueError, "x is not a recognized"),
        (partial(det, [["a"]]), TypeError, r"cannot be cast to float\(32, 64\)"),
        (partial(solve, 1j * np.eye(2), [1, 2], transposed=True), NotImplementedError,
         r"^scipy\.linalg\.solve can currently not solve"),
    ],
)  # fmt: skip
def test_words_that_handlers_of_errors_look_for(
    call: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("words", ["An ill-conditioned matrix detected", "Ill-conditioned matrix"])
def test_words_that_filters_of_warnings_look_for(words: str) -> None:
    for structure in (None, "pos"):
        with pytest.warns(LinAlgWarning, match=words):
            solve(scipy.linalg.hilbert(12), np.ones(12), assume_a=structure)
    with pytest.warns(LinAlgWarning, match="^Diagonal number 1 is exactly zero. Singular matrix.$"):
        lu_factor(np.zeros((2, 2)))
