"""Array types for type checkers: a result is of the same kind as the argument.

Array-likes of the host, lists included, give NumPy arrays.  CuPy and Dask arrays are recognized by
their attributes, so that neither library is imported for its types.  Types of results are those
for one matrix; functions of a stack return arrays with its leading dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeVar

from numpy.typing import ArrayLike, NDArray

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


AnyArray = ArrayLike | GpuArray | LazyArray
#: An array of a GPU, a Dask array, or either: the result is of the same class.
Gpu = TypeVar("Gpu", bound=GpuArray)
Lazy = TypeVar("Lazy", bound=LazyArray)
GpuOrLazy = TypeVar("GpuOrLazy", bound=GpuArray | LazyArray)
#: The arrays of a factors object, and the second entry of its tuple.
Stored = TypeVar("Stored", bound=Any)
Beside = TypeVar("Beside")
LazyResult = TypeVar("LazyResult", bound=LazyArray, covariant=True)


class LazyLU(Protocol[LazyResult]):
    """Result of `lu_factor` for a Dask array: a named tuple, computed on demand."""

    @property
    def lu(self) -> LazyResult:
        """Packed L and U."""

    @property
    def piv(self) -> LazyResult:
        """Row interchanges."""

    def __iter__(self) -> Iterator[LazyResult]: ...

    def persist(self, **kwargs: Any) -> Self:
        """Factor now, and keep the blocks where they are made."""

    def solve(
        self, b: ArrayLike | LazyArray, trans: int = 0, check_finite: bool = True
    ) -> LazyResult:
        """Solve A X = B, A^T X = B or A^H X = B, lazily."""


class LazyCholesky(Protocol[LazyResult]):
    """Result of `cho_factor` for a Dask array: a named tuple, computed on demand."""

    @property
    def c(self) -> LazyResult:
        """The factor, in one triangle of a square array."""

    @property
    def lower(self) -> bool:
        """Whether the factor is L."""

    def __iter__(self) -> Iterator[Any]: ...

    def persist(self, **kwargs: Any) -> Self:
        """Factor now, and keep the blocks where they are made."""

    def solve(self, b: ArrayLike | LazyArray, check_finite: bool = True) -> LazyResult:
        """Solve A X = B, lazily."""
