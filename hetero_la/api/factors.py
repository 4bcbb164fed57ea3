"""Base class of the result objects, which hold factors, plan and timing, and solve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self

import numpy as np

from hetero_la.checks.array_types import Beside, Stored
from hetero_la.checks.inputs import lapack_dtype, refuse_masked
from hetero_la.execution.report import MixedOutcome, Report, Timing
from hetero_la.execution.resident_factors import Kept
from hetero_la.planning.plan import Plan
from hetero_la.tiles.arrays.counted import in_seconds
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.arrays.transfer import device_index, is_device_array
from hetero_la.tiles.kernels.gpu_libraries.finite import require_finite


class Factors(tuple[Stored, Beside], Generic[Stored, Beside]):
    """Base class of factors; a tuple of two, as SciPy's functions return.

    The arrays stay where the factorization has left them, on the host or on a GPU, and
    every solve runs there.  Factors of a host matrix that GPUs of this process have computed are
    also kept on these GPUs, which then solve, until `release` or until another run needs the
    memory.  Do not change the arrays in place.

    Attributes
    ----------
    info : int
        LAPACK's.
    plan : Plan
        How the run was planned.
    timing : Timing
        How it went.
    mixed : MixedOutcome or None
        What came of `precision="mixed"`, if that was asked for, as of the last solve.
    """

    info: int
    _report: Report
    _kept: Kept | None
    _finite: bool

    def __new__(
        cls, packed: Stored, other: Beside, info: int, report: Report,
        kept: Kept | None = None,
    ) -> Self:  # fmt: skip
        """Create the tuple with the report of the run and the factors kept on GPUs."""
        self = super().__new__(cls, (packed, other))
        self.info, self._report, self._kept, self._finite = info, report, kept, False
        return self

    def __getnewargs__(self) -> tuple[Stored, Beside, int, Report]:
        """Return the arguments from which a copy, or a pickle, is made."""
        return self[0], self[1], self.info, self._report

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has the arrays but not the factors on the GPUs."""
        return {**self.__dict__, "_kept": None}

    _repr_html_ = as_html

    def __repr__(self) -> str:
        (m, n), seconds = self.shape, self._report.known_seconds
        return one_line(
            type(self).__name__, f"{m} x {n} {self.dtype.name} on {self.place}",
            "" if seconds is None else in_seconds(seconds),
            f"info = {self.info}" if self.info else "",
        )  # fmt: skip

    @property
    def place(self) -> str:
        """Where the factors are, in words."""
        gpu = device_index(self[0])
        if gpu is not None:
            return f"GPU {gpu}"
        kept = self._kept.place if self._kept is not None and self._kept.there else ""
        return f"the host, also held by {kept}" if kept else "the host"

    @property
    def plan(self) -> Plan:
        """How the run was planned."""
        return self._report.plan

    @property
    def timing(self) -> Timing:
        """How it went."""
        return self._report.timing

    @property
    def mixed(self) -> MixedOutcome | None:
        """What came of `precision="mixed"`, if that was asked for, as of the last solve."""
        return self._report.mixed

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self[0].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self[0].dtype

    def release(self) -> None:
        """Free the GPU memory of factors that are also on the host.

        Examples
        --------
        >>> import numpy as np, hetero_la
        >>> factors = hetero_la.lu_factor(np.eye(2))
        >>> factors.release()  # they are on the host alone: nothing to free
        """
        if self._kept is not None:
            self._kept.release()
            self._kept = None

    def _require_finite(self, name: str) -> None:
        """Raise ValueError if the factors hold a NaN or an infinity; they are checked only once."""
        if not self._finite:
            require_finite(self[0], name)
            self._finite = True

    def _kept_for(self, b: Any) -> Kept | None:
        """Return the factors on the GPUs, if these can solve for the right-hand sides `b`.

        `b` has to be on the host, and no larger than the matrix, since it needs memory on the GPUs.
        """
        kept = self._kept
        if kept is None or not kept.there or is_device_array(b):
            return None
        refuse_masked(b)
        b = np.asarray(b)
        fits = b.ndim in (1, 2) and len(b) == self.shape[0] and 0 < b.size <= self[0].size
        try:
            dtype = lapack_dtype(b.dtype, "b")
        except ValueError:  # the solve on the host raises it
            return None
        return kept if fits and np.result_type(dtype, self.dtype) == self.dtype else None


def with_each_array(
    found: Any, changed: Callable[[Any], Any], kept: Callable[[Factors], Kept | None] | None = None
) -> Any:
    """Return a value with other arrays in the place of its own, in factors and tuples of any depth.

    Parameters
    ----------
    found : object
        An array or number, a plain or named tuple, or factors.
    changed : callable
        Takes each part that is neither a tuple nor factors, and returns what takes its place.
    kept : callable, optional
        Takes factors, and returns what the new ones have kept on GPUs; by default nothing.

    Examples
    --------
    >>> with_each_array((1, (2.0, None)), str)
    ('1', ('2.0', 'None'))
    """
    if not isinstance(found, tuple):
        return changed(found)
    parts = [with_each_array(part, changed, kept) for part in found]
    if isinstance(found, Factors):
        packed, other = parts
        made = type(found)(packed, other, found.info, found._report, kept(found) if kept else None)
        for name, value in vars(found).items():  # what a subclass has noted of the run
            vars(made).setdefault(name, value)
        return made
    return found._make(parts) if hasattr(found, "_make") else tuple(parts)
