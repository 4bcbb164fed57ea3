"""Array types for type checkers: a result is of the same kind as the argument.

NumPy arrays, numbers and lists of these give NumPy arrays, of any dtype.  CuPy and Dask arrays, and
those of other libraries, are recognized by their attributes, so that none is imported for its
types.  Types of results are those for one matrix; functions of a stack return arrays with its
leading dimensions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

if sys.version_info >= (3, 13):
    from typing import TypeVar
else:
    from typing_extensions import TypeVar

#: An array of the host, of any dtype.
HostArray = NDArray[Any]


class GpuArray(Protocol):
    """Attributes that distinguish `cupy.ndarray` from other arrays."""

    @property
    def device(self) -> Any:
        """The GPU that holds it."""

    def get(self) -> HostArray:
        """Copy it to the host."""


class LazyArray(Protocol):
    """Attributes that distinguish `dask.array.Array` from other arrays."""

    @property
    def chunks(self) -> Any:
        """Sizes of its blocks."""

    def compute(self) -> Any:
        """Compute it, as an array of the host or of a GPU."""


class ExchangedArray(Protocol):
    """Methods of DLPack, which arrays of other libraries have: torch, JAX and others."""

    def __dlpack__(self) -> Any:
        """Share the memory."""

    def __dlpack_device__(self) -> Any:
        """Tell the device that holds it."""


#: Data of the host: numbers, arrays, and up to three levels of sequences of these.  A recursive
#: type would include text, whose items are text.
_Entry = complex | np.number[Any] | HostArray
_Row = Sequence[_Entry]
Numbers = _Entry | _Row | Sequence[_Row] | Sequence[Sequence[_Row]]
AnyArray = Numbers | GpuArray | LazyArray | ExchangedArray
#: The class of an array argument, beside `Numbers`, and of the result.  If no argument determines
#: it, all data are of the host, and it is NumPy's.  `Eager` excludes Dask arrays.
Same = TypeVar("Same", bound=GpuArray | LazyArray | ExchangedArray | HostArray, default=HostArray)
Eager = TypeVar("Eager", bound=GpuArray | ExchangedArray | HostArray, default=HostArray)
Lazy = TypeVar("Lazy", bound=LazyArray)
#: The class of a Dask array, whose determinant is one; the others' is a number, or an array.
LazyOrAny = TypeVar("LazyOrAny", bound=LazyArray, default=Any)
#: The arrays of a factors object, and the second entry of its tuple.
Stored = TypeVar("Stored", bound=Any)
Beside = TypeVar("Beside")
LazyResult = TypeVar("LazyResult", covariant=True)


class LazyFactors(Protocol):
    """A named tuple of factors, computed on demand."""

    def __iter__(self) -> Iterator[Any]: ...

    @property
    def mixed(self) -> Any:
        """What came of `precision="mixed"`, if that was asked for, as of the last solve."""

    def persist(self, **kwargs: Any) -> Self:
        """Factor now, and keep the blocks where they are made."""


class LazyLU(LazyFactors, Protocol[LazyResult]):
    """Result of `lu_factor` for a Dask array."""

    @property
    def lu(self) -> LazyResult:
        """Packed L and U."""

    @property
    def piv(self) -> LazyResult:
        """Row interchanges."""

    def __iter__(self) -> Iterator[LazyResult]: ...

    def solve(
        self, b: Numbers | LazyArray, trans: int = 0, check_finite: bool = True
    ) -> LazyResult:
        """Solve A X = B, A^T X = B or A^H X = B, lazily."""


class LazyCholesky(LazyFactors, Protocol[LazyResult]):
    """Result of `cho_factor` for a Dask array."""

    @property
    def c(self) -> LazyResult:
        """The factor, in one triangle of a square array."""

    @property
    def lower(self) -> bool:
        """Whether the factor is L."""

    def solve(self, b: Numbers | LazyArray, check_finite: bool = True) -> LazyResult:
        """Solve A X = B, lazily."""
