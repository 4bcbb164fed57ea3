"""Strategies for `test_fuzz`: matrices of all kinds in memory of all kinds, and calls with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg
from hypothesis import strategies as st
from numpy.typing import NDArray

from hetero_la.api.structure import INV_NAMES, SOLVE_NAMES

KINDS = (
    "random", "positive", "symmetric", "hermitian", "upper", "lower", "diagonal", "tridiagonal",
    "banded", "integers", "zero column", "deficient", "graded", "zeros", "tiny", "huge", "scaled",
)  # fmt: skip
LAPACK_TYPES = "fdFD"
OTHER_TYPES = "?bhilqBHeOgG"
FORMS = (
    "C", "F", "strided", "reversed", "transposed", "read-only", "unaligned", "swapped", "matrix",
    "subclass", "masked", "list",
)  # fmt: skip


class Subclass(np.ndarray):
    """An array of another class."""


@dataclass(frozen=True)
class Array:
    """How an array is made; anew for every call, as calls may overwrite it."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    form: str
    seed: int
    special: float | None = None

    def make(self) -> Any:
        return formed(self.values(), self.form)

    def plain(self) -> NDArray:
        """What NumPy makes of it."""
        return np.array(np.asarray(self.make()))

    def values(self) -> NDArray:
        dtype = np.dtype(self.dtype)
        rng = np.random.default_rng(self.seed)
        made = of_kind(self.kind, self.shape, dtype, rng)
        if self.special is not None and made.size and dtype.kind in "fc":
            made.reshape(-1)[rng.integers(made.size)] = self.special
        if dtype.kind in "iu":
            made = np.clip(np.rint(3 * made.real), 0 if dtype.kind == "u" else -120, 120)
        with np.errstate(all="ignore"):
            return np.array(made > 0 if dtype.kind == "b" else made).astype(dtype)


def of_kind(kind: str, shape: tuple[int, ...], dtype: np.dtype, rng: Any) -> NDArray:
    """Values in double or long double precision."""
    a = rng.standard_normal(shape)
    if dtype.kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    info = np.finfo({"g": "d", "G": "D"}.get(dtype.char, dtype) if dtype.kind in "fc" else "e")
    scale = np.longdouble(2.0) ** (info.maxexp - 12)
    if kind in ("tiny", "huge"):
        return a * (1 / scale if kind == "tiny" else scale)
    if kind in ("integers", "zeros"):
        return np.rint(a) if kind == "integers" else 0 * a
    if len(shape) < 2 or kind == "random":
        return a
    m, n = shape[-2:]
    rows, columns = np.indices((m, n))
    keep = {
        "upper": rows <= columns, "lower": rows >= columns, "diagonal": rows == columns,
        "tridiagonal": abs(rows - columns) <= 1, "zero column": columns != n // 2,
        "banded": (rows - columns <= 2) & (columns - rows <= 1),
    }  # fmt: skip
    if kind in keep:
        return np.where(keep[kind], a + 3 * (rows == columns), 0)
    if kind == "scaled":
        powers = rng.integers(-info.maxexp + 12, info.maxexp - 12, m)
        return a * (np.longdouble(2.0) ** powers)[:, None]
    if kind == "deficient":
        return a[..., : n // 2] @ rng.standard_normal((n // 2, n))
    if kind == "graded":
        return a * np.logspace(0, -20, n)
    if m != n:
        return a
    turned = np.swapaxes(a, -1, -2)
    if kind == "symmetric":
        return a + turned
    return a + turned.conj() if kind == "hermitian" else a @ turned.conj() + n * np.eye(n)


def formed(a: NDArray, form: str) -> Any:
    """The same numbers in another memory or class."""
    if not a.ndim and form not in ("masked", "read-only"):
        return a.item() if form == "list" else a
    if form in ("C", "F"):
        return np.array(a, order=form)  # type: ignore[call-overload]
    if form == "strided":
        wide = np.zeros([2 * size for size in a.shape], a.dtype)[(slice(None, None, 2),) * a.ndim]
        wide[...] = a
        return wide
    if form == "reversed":
        back = (slice(None, None, -1),) * a.ndim
        return a[back].copy()[back]
    if form == "transposed":
        return a.T.copy().T
    if form == "read-only":
        a.flags.writeable = False
        return a
    if form == "unaligned" and a.dtype != object:
        shifted = np.ndarray(a.shape, a.dtype, bytearray(a.nbytes + 16), offset=1)
        shifted[...] = a
        return shifted
    if form == "swapped":
        return a.astype(a.dtype.newbyteorder())
    if form == "matrix" and a.ndim == 2:
        return np.matrix(a)
    if form == "masked":
        return np.ma.masked_array(a, mask=True)
    return a.tolist() if form == "list" else a.view(Subclass)


@dataclass(frozen=True)
class LU:
    """Factors of a square matrix by SciPy's `lu_factor`."""

    a: Array

    def make(self) -> Any:
        packed, piv = scipy.linalg.lu_factor(replace(self.a, form="C").make(), check_finite=False)
        return formed(packed, self.a.form), piv

    def plain(self) -> tuple[NDArray, NDArray]:
        packed, piv = self.make()
        return np.array(np.asarray(packed)), piv


@dataclass(frozen=True)
class Triangle:
    """A triangle with a diagonal that is far from zero, as `cho_factor` returns it."""

    a: Array
    lower: bool

    def make(self) -> Any:
        values = self.a.values()
        n = min(values.shape[-2:])
        return formed((values + 4 * n * np.eye(*values.shape[-2:])).astype(values.dtype),
                      self.a.form), self.lower  # fmt: skip

    def plain(self) -> tuple[NDArray, bool]:
        return np.array(np.asarray(self.make()[0])), self.lower


@dataclass(frozen=True)
class Call:
    """Arguments of a function, some of which are still to be made, and options that are ours."""

    name: str
    given: Mapping[str, Any]
    flags: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        return {name: recipe.make() for name, recipe in self.given.items()} | dict(self.flags)

    def in_usual_memory(self) -> Call:
        """The same call without byte-swapped and unaligned arrays."""
        return replace(self, given={name: _usual(each) for name, each in self.given.items()})

    def arrays(self) -> list[Array]:
        return [getattr(recipe, "a", recipe) for recipe in self.given.values()]

    @property
    def stacked(self) -> bool:
        return any(len(array.shape) > 2 for array in self.arrays())


def _usual(recipe: Any) -> Any:
    if not isinstance(recipe, Array):
        return replace(recipe, a=_usual(recipe.a))
    return replace(recipe, form="C") if recipe.form in ("swapped", "unaligned") else recipe


# --- strategies

_few = st.integers(0, 6)
_size = st.one_of(_few, _few, st.integers(0, 60))
_bool = st.booleans()
_batch = st.sampled_from([(), (), (), (), (), (2,), (1,), (0,), (3, 1)])
_common = st.sampled_from(LAPACK_TYPES)


def _mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """`usual` three times out of four."""
    return st.integers(0, 3).flatmap(lambda i: st.sampled_from(others) if i == 3 else usual)


_dtype = _mostly(_common, *OTHER_TYPES)
_form = _mostly(st.sampled_from("CF"), *FORMS)
_kind = st.one_of(st.just("random"), st.sampled_from(KINDS))
_special = _mostly(st.none(), None, None, np.nan, np.inf, -np.inf)


def _array(
    shape: Any, kind: Any = _kind, dtype: Any = _dtype, form: Any = _form, special: Any = _special
) -> st.SearchStrategy[Array]:
    return st.builds(Array, kind, shape, dtype, form, st.integers(0, 9999), special)


@st.composite
def _square_shape(draw: Any) -> tuple[int, ...]:
    n = draw(_size)
    m = draw(_mostly(st.just(n), n, n, n, n, n + 1, 0))
    return draw(_mostly(st.just((*draw(_batch), m, n)), (m, n), (m, n), (m, n), (n,), ()))


@st.composite
def _any_shape(draw: Any) -> tuple[int, ...]:
    m, n = draw(_size), draw(_size)
    return draw(_mostly(st.just((*draw(_batch), m, n)), (m, n), (m, n), (m, n), (n,), ()))


@st.composite
def _right_hand_sides(draw: Any, a: Array, rows: int | None = None) -> Array:
    """With as many rows as `a` has, mostly."""
    m = rows if rows is not None else a.shape[-2] if len(a.shape) > 1 else 2
    m = draw(_mostly(st.just(m), m, m, m, m + 1))
    shape = draw(st.sampled_from([(m,), (m, draw(_size)), (*a.shape[:-2], m, draw(_few))]))
    usual = _mostly(st.just(a.dtype), *LAPACK_TYPES, *OTHER_TYPES)
    kinds = st.sampled_from(["random", "random", "zeros", "integers", "tiny", "huge"])
    return draw(_array(st.just(shape), kinds, usual))


def _flags(**known: Any) -> st.SearchStrategy[dict[str, Any]]:
    every = {"overwrite_a": _bool, "check_finite": _mostly(st.just(True), False), **known}
    return st.fixed_dictionaries(
        {}, optional={name: value for name, value in every.items() if value is not None}
    )


@st.composite
def _options(draw: Any, a: Array) -> dict[str, Any]:
    """A tile size that makes at most eight steps."""
    nb = draw(st.one_of(st.none(), st.integers(1, 64)))
    return {} if nb is None else {"nb": max(nb, max(a.shape, default=0) // 8)}


_OF_ONE_MATRIX: dict[str, tuple[Any, Any]] = {
    "lu": (_any_shape(), _flags(permute_l=_bool, p_indices=_bool)),
    "lu_factor": (_any_shape(), _flags()),
    "inv": (_square_shape(), _flags(lower=_bool, assume_a=st.sampled_from(
        [None, None, *map(str, INV_NAMES)]))),
    "det": (_square_shape(), _flags()),
    "slogdet": (_square_shape(), st.just({})),
    "cholesky": (_square_shape(), _flags(lower=_bool)),
    "cho_factor": (_square_shape(), _flags(lower=_bool)),
    "qr": (_any_shape(), _flags(
        pivoting=_bool, lwork=_mostly(st.just(None), None, -1, 1, 200),
        mode=st.sampled_from(["full", "qr", "r", "raw", "economic", "economic", "other"]))),
}  # fmt: skip
#: The kind of matrix that a function, or `assume_a`, is for.
_KIND_FOR = {
    "cholesky": "positive", "cho_factor": "positive", "pos": "positive",
    "positive definite": "positive", "sym": "symmetric", "symmetric": "symmetric",
    "her": "hermitian", "hermitian": "hermitian", "upper triangular": "upper",
    "lower triangular": "lower", "diagonal": "diagonal", "tridiagonal": "tridiagonal",
    "banded": "banded",
}  # fmt: skip


@st.composite
def _of_one_matrix(draw: Any, name: str) -> Call:
    shape, flags = _OF_ONE_MATRIX[name]
    given = draw(flags)
    kind = st.sampled_from([_KIND_FOR.get(given.get("assume_a", name), "random")])
    a = draw(_array(
        shape, st.one_of(kind, _kind), _common if name == "slogdet" else _dtype,
        special=st.none() if name == "slogdet" else _special,
    ))  # fmt: skip
    return Call(name, {"a": a}, given, draw(_options(a)))


@st.composite
def _solve(draw: Any) -> Call:
    flags = draw(_flags(
        lower=_bool, overwrite_b=_bool, transposed=_bool,
        assume_a=st.sampled_from([None, None, *map(str, SOLVE_NAMES), "other"]),
    ))  # fmt: skip
    kind = st.sampled_from([_KIND_FOR.get(flags.get("assume_a"), "random")])
    a = draw(_array(_square_shape(), st.one_of(kind, _kind)))
    return Call("solve", {"a": a, "b": draw(_right_hand_sides(a))}, flags, draw(_options(a)))


@st.composite
def _lstsq(draw: Any) -> Call:
    flags = draw(_flags(
        overwrite_b=_bool, cond=_mostly(st.none(), 1e-3, 0.5, 0, -1),
        lapack_driver=st.sampled_from([None, "gelsd", "gelss", "gelsy", "other"]),
    ))  # fmt: skip
    a = draw(_array(_any_shape()))
    return Call("lstsq", {"a": a, "b": draw(_right_hand_sides(a))}, flags, draw(_options(a)))


@st.composite
def _qr_multiply(draw: Any) -> Call:
    flags = draw(_flags(
        overwrite_c=_bool, conjugate=_bool, pivoting=_bool, mode=st.sampled_from(["left", "right"]),
        check_finite=None,
    ))  # fmt: skip
    a = draw(_array(_any_shape()))
    m, n = a.shape[-2:] if len(a.shape) > 1 else (2, 2)
    left = flags.get("mode") == "left"
    rows = m if not left or (flags.get("overwrite_c") and m > n) else min(m, n)
    c = draw(_right_hand_sides(a, rows))
    if not left and len(c.shape) > 1:
        c = replace(c, shape=(*c.shape[:-2], c.shape[-1], c.shape[-2]))
    return Call("qr_multiply", {"a": a, "c": c}, flags, draw(_options(a)))


@st.composite
def _lu_solve(draw: Any) -> Call:
    n = draw(_size)
    batch = draw(_batch.filter(lambda batch: 0 not in batch))
    a = draw(_array(st.just((*batch, n, n)), _kind, _common, special=st.none()))
    flags = draw(_flags(overwrite_a=None, overwrite_b=_bool, trans=st.sampled_from([0, 1, 2, 3])))
    return Call("lu_solve", {"lu_and_piv": LU(a), "b": draw(_right_hand_sides(a))}, flags)


@st.composite
def _cho_solve(draw: Any) -> Call:
    a = draw(_array(_square_shape(), st.just("random")))
    factor = Triangle(a, draw(_bool)) if len(a.shape) > 1 else Triangle(
        replace(a, shape=(3, 3)), draw(_bool)
    )  # fmt: skip
    flags = draw(_flags(overwrite_a=None, overwrite_b=_bool))
    b = draw(_right_hand_sides(factor.a))
    return Call("cho_solve", {"c_and_lower": factor, "b": b}, flags)


CALLS: dict[str, st.SearchStrategy[Call]] = {
    **{name: _of_one_matrix(name) for name in _OF_ONE_MATRIX},
    "solve": _solve(), "lstsq": _lstsq(), "qr_multiply": _qr_multiply(),
    "lu_solve": _lu_solve(), "cho_solve": _cho_solve(),
}  # fmt: skip
