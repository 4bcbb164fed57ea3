"""Every function against SciPy's, for inputs that hypothesis makes up.

Shapes, dtypes, kinds of results and exceptions are SciPy's, but for the differences that
docs/how_to/scipy.md names: `DIFFERENT`.  Values are judged by error ratios, against DESIGN's limit
or SciPy's own: never by equality, as those of ill-conditioned problems may be far apart.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import Cluster
from hetero_la.api.structure import SOLVE_NAMES, Structure, structure_of
from tests.fuzz_calls import CALLS, LAPACK_TYPES, Array, Call
from tests.support import FUZZ, LIMIT

FEW = settings(FUZZ, max_examples=40)
pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
#: In which type SciPy works, where that is another one.
CAST = {**dict.fromkeys("?bhBHe", "f"), **dict.fromkeys("ilqg", "d"), "G": "D"}
#: Kinds of matrices near the ends of the range.
EXTREME = ("tiny", "huge", "scaled")
MANY = settings(FEW, max_examples=5000, derandomize=False)


@pytest.mark.parametrize("name", CALLS)
@FEW
@given(data=st.data())
def test_every_function_agrees_with_scipy_on_a_few_calls(name: str, data: Any) -> None:
    check(data.draw(CALLS[name]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CALLS)
@MANY
@given(data=st.data())
def test_every_function_agrees_with_scipy_on_many_calls(name: str, data: Any) -> None:
    check(data.draw(CALLS[name]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(cpus=1, gpus=0, virtual_gpus=2, blas_threads=1) as cluster:
        yield cluster


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("lu_solve", "cho_solve")])
@settings(FEW, max_examples=6)
@given(data=st.data())
def test_every_function_agrees_with_scipy_on_several_workers(
    name: str, cluster: Cluster, data: Any
) -> None:
    call = data.draw(CALLS[name])
    panel = data.draw(st.sampled_from(["auto", "cpu", "gpu"]))
    check(replace(call, options={**call.options, "client": cluster, "panel": panel}))


# --- what is compared


class Outcome(NamedTuple):
    """What a call gives: a result or an error, and warnings."""

    value: Any
    error: Exception | None
    warned: list[warnings.WarningMessage]

    @property
    def alarms(self) -> int:
        """How often it warned of what is singular to working precision."""
        return sum(issubclass(w.category, LinAlgWarning) for w in self.warned)


def outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> Outcome:
    value, error = None, None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = function(**arguments)
        except Exception as raised:
            error = raised
    return Outcome(value, error, warned)


def check(call: Call) -> None:
    """One call is as SciPy's, and leaves alone what it may not overwrite."""
    function = np.linalg.slogdet if call.name == "slogdet" else getattr(scipy.linalg, call.name)
    # SciPy 1.18.1 refuses some arrays that are not aligned, and reads some that are byte-swapped
    # as if they were not.
    given = call.in_usual_memory().arguments()
    # SciPy overwrites what matrices of a stack share; its `solve` and `inv` crash where they may
    # overwrite symmetric column-major matrices (1.17.1, 1.18.1).
    if call.stacked or call.name in ("solve", "inv"):
        given = {k: v for k, v in given.items() if not k.startswith("overwrite_")}
    a = given.get("a")
    if call.name == "inv" and isinstance(a, np.ndarray) and a.dtype.char in CAST:
        given["a"] = np.asarray(a).astype(CAST[a.dtype.char])  # SciPy's crashes, if it is singular
    # LAPACK looks for singular values of what is not finite for ever.
    numbers = all(a.dtype != "O" for a in call.arrays())
    unchecked = call.name == "lstsq" and not call.flags.get("check_finite", True) and numbers
    asked = not unchecked or is_finite(call)
    theirs = outcome(function, given) if asked else None
    arguments = call.arguments()
    ours = outcome(getattr(hetero_la, call.name), arguments | dict(call.options))
    for name, recipe in call.given.items():
        if not call.flags.get(f"overwrite_{name}") or array_of(recipe).form == "read-only":
            assert_same_bits(arguments[name], recipe.make())
    if theirs is None:
        return
    if any(different(call, ours, theirs) for different in DIFFERENT.values()):
        return
    assert_errors_alike(call, ours, theirs)
    if ours.error is None and theirs.error is None:
        assert_alike(ours.value, theirs.value)
        if is_finite(call):
            assert not [str(w.message) for w in ours.warned if w.category is RuntimeWarning]
            VALUES[call.name](call, ours.value, theirs.value)


def array_of(recipe: Any) -> Array:
    return getattr(recipe, "a", recipe)


def is_finite(call: Call) -> bool:
    parts = (recipe.plain() for recipe in call.given.values())
    flat = (x for part in parts for x in (part if isinstance(part, tuple) else (part,)))
    return all(bool(np.isfinite(x).all()) for x in flat)


def assert_same_bits(one: Any, other: Any) -> None:
    if isinstance(one, tuple):
        for a, b in zip(one, other, strict=True):
            assert_same_bits(a, b)
    elif isinstance(one, np.ndarray) and one.dtype.char not in "OgG":  # of which bits mean nothing
        assert np.array(one).tobytes() == np.array(other).tobytes()
    else:
        assert repr(one) == repr(other)


def assert_alike(ours: Any, theirs: Any) -> None:
    """The same kinds of results, of the same shapes and dtypes."""
    if isinstance(theirs, tuple | list):  # until SciPy 1.18 a list, of stacks
        assert isinstance(ours, tuple)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
        return
    if type(theirs) is int:  # lstsq's rank, of an empty matrix, and until SciPy 1.18 of any
        theirs = np.int64(theirs)
    assert isinstance(ours, np.ndarray | np.generic | None)
    assert type(ours) is not np.ma.MaskedArray
    assert (ours is None) == (theirs is None), (ours, theirs)
    if theirs is not None:
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert ours.dtype.isnative


def assert_errors_alike(call: Call, ours: Outcome, theirs: Outcome) -> None:
    """The same kind of error, and where conditioning is clear, the same alarms."""
    if (ours.error is None or isinstance(ours.error, LinAlgError)) and (
        theirs.error is None or isinstance(theirs.error, LinAlgError)
    ):
        if not is_clear(call):
            return
        assert (ours.error is None) == (theirs.error is None), (ours, theirs)
        assert (ours.alarms > 0) == (theirs.alarms > 0), (ours, theirs)
        assert ("singular" in str(ours.error)) >= ("singular" in str(theirs.error))
        return
    assert ours.error is not None, theirs.error
    assert theirs.error is not None, ours.error
    # Of two faults, either may be found first.
    faults = isinstance(theirs.error, NotImplementedError), not is_finite(call)
    if any(faults) or isinstance(ours.error, NotImplementedError):
        return
    assert isinstance(ours.error, type(theirs.error)), (ours.error, theirs.error)
    assert isinstance(ours.error, LinAlgError) == isinstance(theirs.error, LinAlgError)


def is_clear(call: Call) -> bool:
    """Whether no matrix is so near to one that is singular that rounding decides."""
    if not is_finite(call) or not {a.kind for a in call.arrays()}.isdisjoint(EXTREME):
        return False
    a = next(iter(call.given.values())).plain()
    for each in matrices(a[0] if isinstance(a, tuple) else a):
        size = max(1, *each.shape)
        if each.size and condition(effective(call, each)) * eps_of(call) * size > 1e-2:
            return False
    return True


# --- differences that docs/how_to/scipy.md names


def refused(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """Object arrays and masked ones are refused by all functions."""
    made = call.arrays()
    if not any(a.form == "masked" or (a.dtype == "O" and a.form != "list") for a in made):
        return False
    assert isinstance(ours.error, ValueError), ours
    return True


def long_double_determinant(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """Long double becomes float64 in `det`, too."""
    return call.name == "det" and call.given["a"].dtype in "gG" and ours.error is None


def stack_of_none(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """Stacks of no matrix have results of the right shape; SciPy refuses some."""
    none = any(0 in a.shape[:-2] for a in call.arrays())
    return none and theirs.error is not None and ours.error is None


def one_dimension(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """`lu_factor` refuses an array of less than two dimensions, as all functions do."""
    return call.name == "lu_factor" and len(call.given["a"].shape) < 2 and "two-dim" in str(
        ours.error
    )  # fmt: skip


def lists(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """Lists are taken by all functions; SciPy 1.18 forgets some."""
    return "'list' object has no attribute" in str(theirs.error)


def nothing_given(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """Of empty arrays, types and errors of arguments are those of others, and so are stacks."""
    given = call.arrays()
    if not any(0 in a.shape for a in given):
        return False
    one_refuses = (ours.error is None) != (theirs.error is None)
    return one_refuses or call.stacked or any(a.dtype not in LAPACK_TYPES for a in given)


def stack_of_numbers(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """A stack of 1 x 1 matrices divides right-hand sides of any length, as one of them does."""
    one = call.name == "solve" and call.stacked and call.given["a"].shape[-2:] == (1, 1)
    return one and "incompatible shapes" in str(theirs.error)


def structure_of_number(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """One number divides, if it is positive where the matrix is said to be; SciPy's, mostly."""
    if call.name != "solve" or math.prod(call.given["a"].shape) != 1:
        return False
    return "positive definite" in str(ours.error) or "gbsv" in str(theirs.error)


def wrapper_error(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """A ValueError where SciPy lets an error of its wrappers through, which has no public name."""
    return type(theirs.error).__name__ == "error" and isinstance(ours.error, ValueError)


def type_of_product(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """The product of `qr_multiply` has the common type of both; SciPy drops precision of `c`."""
    if call.name != "qr_multiply" or ours.error or theirs.error:
        return False
    return ours.value[0].dtype != theirs.value[0].dtype == ours.value[1].dtype


def out_of_range(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """What is near the ends of the range may overflow on the way to a solution."""
    extreme = any(a.kind in EXTREME for a in call.arrays())
    return (
        call.name == "solve"
        and extreme
        and ours.error is None
        and not np.isfinite(ours.value).all()
    )


def not_square_slogdet(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """`slogdet` raises what `det` does, a ValueError; NumPy's is a LinAlgError, which is one."""
    return call.name == "slogdet" and isinstance(ours.error, ValueError) and isinstance(
        theirs.error, LinAlgError
    )  # fmt: skip


def before_1_18(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """SciPy 1.17: no raw factors of a stack, real residuals of lstsq, fewer refusals."""
    if scipy_version() >= (1, 18):
        return False
    if ours.error:  # and arguments are not all looked at
        unseen = call.name == "solve" and "infs or NaNs" in str(ours.error)
        return unseen or call.flags.get("lwork") == 1 or call.flags.get("cond") == -1
    if call.name == "qr":
        return call.stacked
    if call.name == "lstsq" and not theirs.error and np.size(theirs.value[1]) == 0:
        return True  # of a matrix that is not of full rank
    types = {a.dtype for a in call.arrays()}
    return call.name == "lstsq" and (call.stacked or types not in ({"f"}, {"d"}))


def scipy_version() -> tuple[int, ...]:
    return tuple(map(int, scipy.__version__.split(".")[:2]))


def form_of_lower(call: Call, ours: Outcome, theirs: Outcome) -> bool:
    """The second result of `cho_factor` is a bool, or an array of the leading dimensions."""
    if call.name != "cho_factor" or ours.error or theirs.error:
        return False
    lower = bool(call.flags.get("lower", False))
    assert np.array_equal(ours.value[1], np.full(ours.value[0].shape[:-2], lower))
    assert_alike(ours.value[0], theirs.value[0])
    if is_finite(call):
        VALUES["cho_factor"](call, ours.value, theirs.value)
    return True


DIFFERENT = {each.__name__: each for each in (
    refused, long_double_determinant, stack_of_none, one_dimension, lists, nothing_given,
    stack_of_numbers, structure_of_number, wrapper_error, type_of_product, out_of_range,
    not_square_slogdet, before_1_18, form_of_lower,
)}  # fmt: skip


# --- values


def wide(a: Any) -> NDArray:
    """In a type whose rounding, overflow and underflow do not count."""
    a = np.asarray(a)
    return a.astype(np.result_type(a, np.longdouble))


def matrices(a: Any, core: int = 2) -> NDArray:
    """A stack in one dimension."""
    a = np.asarray(a)
    if a.ndim < core:
        return a.reshape(1, *[1] * (core - a.ndim), *a.shape)
    split = a.ndim - core
    return a.reshape(math.prod(a.shape[:split]), *a.shape[split:])


def norm(a: NDArray) -> Any:
    return np.abs(a).sum(axis=0).max(initial=0)


def ratio(error: NDArray, *divisors: Any) -> float:
    size = norm(error)
    for divisor in divisors:
        size = size / divisor if size else size
    return float(size) if np.isfinite(size) else np.inf


def eps_of(call: Call) -> float:
    """LAPACK's eps of the type that the call is worked in."""
    types = [np.dtype(a.dtype) for a in call.arrays()]
    narrow = {"e", "f", "F", "?", "b", "B", "h", "H"}
    return 2.0**-24 if any(t.char in narrow for t in types) else 2.0**-53


def condition(a: NDArray) -> float:
    a = wide(a)
    size = np.abs(a).max(initial=0)
    if not size:
        return np.inf
    s = np.linalg.svd((a / size).astype(complex), compute_uv=False)
    return float(s[0] / s[-1]) if s[-1] else np.inf


def assert_small(ours: float, theirs: float, what: str) -> None:
    assert ours < max(LIMIT, 10 * theirs) or theirs == np.inf, (what, ours, theirs)


def effective(call: Call, a: NDArray) -> NDArray:
    """The matrix that a call sees, of which it may read but a part."""
    if call.name not in ("solve", "inv", "cholesky", "cho_factor"):
        return a
    name, lower = call.flags.get("assume_a"), bool(call.flags.get("lower", False))
    if call.name in ("cholesky", "cho_factor"):
        name = "pos"
    structure = structure_of(name if name in SOLVE_NAMES else None)
    triangle = np.tril(a) if lower else np.triu(a)
    other = np.tril(a, -1).T if lower else np.triu(a, 1).T
    if structure in (Structure.HERMITIAN, Structure.POSITIVE):
        return triangle - 1j * np.diag(triangle.diagonal().imag) + other.conj()
    return {
        Structure.DIAGONAL: np.diag(a.diagonal()),
        Structure.TRIDIAGONAL: np.triu(np.tril(a, 1), -1), Structure.UPPER: np.triu(a),
        Structure.LOWER: np.tril(a), Structure.SYMMETRIC: triangle + other,
    }.get(structure, a)  # fmt: skip


def each_matrix(call: Call, *results: Any) -> Iterator[tuple[NDArray, ...]]:
    """Matrices and what was made of them, where there is something in them."""
    a = matrices(call.given["a"].plain())
    for parts in zip(a, *map(matrices, results), strict=True):
        if parts[0].size:
            yield tuple(wide(part) for part in parts)


def lu_values(call: Call, ours: Any, theirs: Any) -> None:
    """Ours alone: SciPy 1.18.1 returns what is wrong for column-major arrays that it casts."""
    assert max(lu_ratios(call, ours), default=0) < LIMIT


def lu_ratios(call: Call, factors: tuple[Any, ...]) -> list[float]:
    ratios = []
    if call.flags.get("permute_l"):
        for a, pl, u in each_matrix(call, *factors):
            ratios.append(ratio(a - pl @ u, norm(a), a.shape[1], eps_of(call)))
        return ratios
    p, *rest = factors
    core = 1 if call.flags.get("p_indices") else 2
    rows = matrices(p, core)
    for i, (a, lower, u) in enumerate(each_matrix(call, *rest)):
        product = lower @ u
        product = product[rows[i].astype(int)] if core == 1 else wide(rows[i]) @ product
        assert np.array_equal(np.tril(lower, -1) + np.eye(*lower.shape), lower)
        assert np.array_equal(np.triu(u), u)
        assert np.abs(lower).max() <= 1.001 * np.sqrt(2)
        ratios.append(ratio(a - product, norm(a), a.shape[1], eps_of(call)))
    return ratios


def lu_factor_values(call: Call, ours: Any, theirs: Any) -> None:
    def ratios(factors: tuple[Any, Any]) -> Iterator[float]:
        pivots = matrices(factors[1], 1)
        for i, (a, packed) in enumerate(each_matrix(call, factors[0])):
            k = min(a.shape)
            for row, other in enumerate(pivots[i]):
                a[[row, other]] = a[[other, row]]
            lower = np.tril(packed[:, :k], -1) + np.eye(len(a), k)
            error = a - lower @ np.triu(packed[:k])
            yield ratio(error, norm(a), a.shape[1], eps_of(call))

    for one, other in zip(ratios(ours), ratios(theirs), strict=True):
        assert_small(one, other, "P A - L U")


def solved(call: Call, a: Any, b: Any, x: Any) -> Iterator[float]:
    """Ratios of systems, all of them with leading dimensions that are broadcast."""
    a, b, x = (np.asarray(part) for part in (a, b, x))
    columns = b.ndim > 1
    b, x = (part if columns else part[..., None] for part in (b, x))
    if a.size == 1 and a.ndim < 2:
        a = a.reshape(1, 1)
    if a.size == 1 and b.shape[-2:] != (1, b.shape[-1]):
        a = np.eye(b.shape[-2]) * a
    batch = x.shape[:-2]
    for index in np.ndindex(batch):
        A, B, X = (
            wide(np.broadcast_to(part, batch + part.shape[-2:])[index]) for part in (a, b, x)
        )
        A = effective(call, A)
        A = A.T if call.flags.get("transposed") else A
        for j in range(X.shape[1] if A.size else 0):
            yield ratio(B[:, j] - A @ X[:, j], norm(A), norm(X[:, j]), eps_of(call))


def solve_values(call: Call, ours: Any, theirs: Any) -> None:
    a, b = call.given["a"].plain(), call.given["b"].plain()
    for one, other in zip(solved(call, a, b, ours), solved(call, a, b, theirs), strict=True):
        assert_small(one, other, "B - A X")


def lu_solve_values(call: Call, ours: Any, theirs: Any) -> None:
    (packed, piv), b = call.given["lu_and_piv"].plain(), call.given["b"].plain()
    whole, trans = [], call.flags.get("trans", 0)
    for lu, swaps in zip(matrices(packed), matrices(piv, 1), strict=True):
        a = wide(np.tril(lu, -1) + np.eye(len(lu))) @ wide(np.triu(lu))
        for row in range(len(lu) - 1, -1, -1):
            a[[row, swaps[row]]] = a[[swaps[row], row]]
        whole.append((a, a.T, a.conj().T)[trans])
    a = np.array(whole).reshape(packed.shape)
    for one, other in zip(solved(call, a, b, ours), solved(call, a, b, theirs), strict=True):
        assert_small(one, other, "B - P L U X")


def cho_solve_values(call: Call, ours: Any, theirs: Any) -> None:
    (c, lower), b = call.given["c_and_lower"].plain(), call.given["b"].plain()
    factor = wide(np.tril(c) if lower else np.triu(c))
    adjoint = np.swapaxes(factor, -1, -2).conj()
    a = factor @ adjoint if lower else adjoint @ factor
    for one, other in zip(solved(call, a, b, ours), solved(call, a, b, theirs), strict=True):
        assert_small(one, other, "B - L L^H X")


def inv_values(call: Call, ours: Any, theirs: Any) -> None:
    def error(a: NDArray, x: NDArray) -> float:
        a = effective(call, a)
        eye, sizes = np.eye(len(a)), (norm(a), norm(x), len(a), eps_of(call))
        return min(ratio(eye - a @ x, *sizes), ratio(eye - x @ a, *sizes))

    for a, one, other in each_matrix(call, ours, theirs):
        assert_small(error(a, one), error(a, other), "I - A X")


def det_values(call: Call, ours: Any, theirs: Any) -> None:
    a = matrices(call.given["a"].plain())
    for each, one, other in zip(a, np.ravel(ours), np.ravel(theirs), strict=True):
        bound = 100 * len(each) * eps_of(call) * condition(each)
        if bound < 1 and other and np.isfinite(other):
            assert abs(wide(one) - wide(other)) <= bound * abs(wide(other))


def slogdet_values(call: Call, ours: Any, theirs: Any) -> None:
    a = matrices(call.given["a"].plain())
    rows = zip(a, *map(np.ravel, (*ours, *theirs)), strict=True)
    for each, sign, size, its_sign, its_size in rows:
        bound = 100 * len(each) * eps_of(call) * condition(each)
        if bound < 1:
            assert abs(sign - its_sign) <= bound
            assert abs(size - its_size) <= bound + 4 * eps_of(call) * abs(its_size)


def cholesky_values(call: Call, ours: Any, theirs: Any) -> None:
    lower = bool(call.flags.get("lower", False))

    def error(a: NDArray, factor: NDArray) -> float:
        a = effective(call, a)
        factor = np.tril(factor) if lower else np.triu(factor)
        product = factor @ factor.conj().T if lower else factor.conj().T @ factor
        return ratio(a - product, norm(a), len(a), eps_of(call))

    for a, one, other in each_matrix(call, ours, theirs):
        assert_small(error(a, one), error(a, other), "A - L L^H")
        assert not (np.triu(one, 1) if lower else np.tril(one, -1)).any()


def cho_factor_values(call: Call, ours: Any, theirs: Any) -> None:
    triangle = np.tril if call.flags.get("lower") else np.triu
    cholesky_values(call, triangle(ours[0]), triangle(theirs[0]))


def qr_values(call: Call, ours: Any, theirs: Any) -> None:
    for one, other in zip(qr_ratios(call, ours), qr_ratios(call, theirs), strict=True):
        assert_small(one, other, "A - Q R, or I - Q^H Q")


def qr_ratios(call: Call, factors: tuple[Any, ...]) -> Iterator[float]:
    """Of A - Q R, and of I - Q^H Q; where Q is not given, of A^H A - R^H R."""
    mode, eps = call.flags.get("mode", "full"), eps_of(call)
    *factors, p = factors if call.flags.get("pivoting") else (*factors, None)
    first, tau = factors[0] if mode == "raw" else (factors[0], None)
    r = matrices(factors[-1])
    for i, (a, q) in enumerate(each_matrix(call, first)):
        m, n = a.shape
        if p is not None:
            a = a[:, matrices(p, 1)[i]]
        upper = wide(r[i])
        assert np.array_equal(np.triu(upper), upper)
        if mode == "r":
            yield ratio(a.conj().T @ a - upper.conj().T @ upper, norm(a), norm(a.conj().T), m, eps)
            continue
        if tau is not None:
            q = reflected(q, matrices(tau, 1)[i])
        yield ratio(a - q[:, : len(upper)] @ upper, norm(a), max(m, n), eps)
        yield ratio(np.eye(q.shape[1]) - q.conj().T @ q, m, eps)


def reflected(packed: NDArray, tau: NDArray) -> NDArray:
    """Q of reflectors, their vectors below the diagonal."""
    q = wide(np.eye(len(packed), dtype=packed.dtype))
    for i in range(len(tau) - 1, -1, -1):
        v = np.where(np.arange(len(packed)) == i, 1, np.tril(packed, -1)[:, i])
        q = q - tau[i] * np.outer(v, v.conj() @ q)
    return q


def qr_multiply_values(call: Call, ours: Any, theirs: Any) -> None:
    """The product is as near to SciPy's as the conditioning of A makes Q."""
    k = min(call.given["a"].plain().shape[-2:])
    cond = max(map(condition, matrices(call.given["a"].plain()[..., :k])), default=0)
    # A column that is orthogonal to those before it is reflected to either side, by rounding.
    sides = [np.sign(np.diagonal(r, axis1=-2, axis2=-1).real) for r in (ours[1], theirs[1])]
    if cond * eps_of(call) < 1e-3 and np.isfinite(theirs[0]).all() and np.array_equal(*sides):
        one, other = wide(ours[0]), wide(theirs[0])
        size = 100 * 60 * eps_of(call) * cond * np.abs(other).max(initial=0)
        size += 1e3 * np.finfo(ours[0].dtype).tiny
        assert np.abs(one - other).max(initial=0) <= size


def lstsq_values(call: Call, ours: Any, theirs: Any) -> None:
    eps = eps_of(call)
    a, b = call.given["a"].plain(), call.given["b"].plain()
    columns = b.ndim > 1
    b = b if columns else b[..., None]
    x = [part[0] if columns else part[0][..., None] for part in (ours, theirs)]
    batch = x[0].shape[:-2]
    for index in np.ndindex(batch):
        A, B = (wide(np.broadcast_to(y, batch + y.shape[-2:])[index]) for y in (a, b))
        if not A.size or not B.size or condition(A) * eps * 60 > 1e-2:
            continue
        if call.flags.get("cond") not in (None, 0) and condition(A) > 1:
            continue
        assert np.all(np.asarray(ours[2]) == np.asarray(theirs[2]))
        found = []
        for X in (wide(each[index]) for each in x):
            rest = B - A @ X
            sizes = norm(A), norm(B), max(*A.shape, B.shape[1]), eps
            found.append(ratio(A.conj().T @ rest, norm(A.conj().T), *sizes[1:]))
        assert_small(*found, "A^H (B - A X)")
    if ours[3] is not None:
        one, other = (matrices(part[3], 1) for part in (ours, theirs))
        for s, its in zip(one, other, strict=True):
            its = wide(its)
            assert np.abs(wide(s) - its).max(initial=0) <= 60 * 10 * eps * its.max(initial=0)


VALUES = {
    "lu": lu_values, "lu_factor": lu_factor_values, "lu_solve": lu_solve_values,
    "solve": solve_values, "inv": inv_values, "det": det_values, "slogdet": slogdet_values,
    "cholesky": cholesky_values, "cho_factor": cho_factor_values, "cho_solve": cho_solve_values,
    "qr": qr_values, "qr_multiply": qr_multiply_values, "lstsq": lstsq_values,
}  # fmt: skip
