"""Factors that stay on the GPUs that computed them, for later solves."""

from __future__ import annotations

import abc
import enum
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero_la.execution.timeline import traced
from hetero_la.numerics.triangles import solve_with_cholesky
from hetero_la.planning.plan import Plan
from hetero_la.planning.planner import follow_up
from hetero_la.scheduler.on_dask.threads import run_local
from hetero_la.scheduler.placement.workers import workers_text
from hetero_la.scheduler.run.job import Outcome
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.arrays.errors import RunAbortedError
from hetero_la.tiles.arrays.transfer import (
    device_index,
    forked_after_cuda,
    on_device_of,
    to_device,
    to_host,
)
from hetero_la.tiles.kernels.gpu_libraries.cusolver import lu_solve, multiply_by_q, solve_upper
from hetero_la.tiles.storage.shard import ArrayStorage, Shard


class Residency(enum.Enum):
    """Who has the factors once a run is over: of a matrix on the host, by GPUs of this process."""

    CALLER = enum.auto()  #: they come home
    BOTH = enum.auto()  #: they come home, and stay
    WORKERS = enum.auto()  #: they stay
    NOBODY = enum.auto()  #: the run does all that follows, if it can; if not, they stay


#: Factors that are also on the host, and are released when GPU memory is short.
_copies: weakref.WeakSet[Kept] = weakref.WeakSet()


def release_copies() -> bool:
    """Release all factors on GPUs that are also on the host; return whether there were any."""
    held = list(_copies)
    for kept in held:
        kept.release()
    return bool(held)


class Kept(abc.ABC):
    """Base class of factors of a host matrix that are on GPUs.

    Parameters
    ----------
    copies : bool
        Whether the factors are also on the host.
    """

    def __init__(self, *, copies: bool) -> None:
        self._copies = copies
        if copies:
            _copies.add(self)

    def release(self) -> None:
        """Free the memory."""
        _copies.discard(self)

    @property
    @abc.abstractmethod
    def dtype(self) -> Any:
        """Element type."""

    @property
    @abc.abstractmethod
    def there(self) -> bool:
        """Whether the factors have not been released, and can be used."""

    @property
    @abc.abstractmethod
    def place(self) -> str:
        """Where the factors are, in words."""

    @abc.abstractmethod
    def solve(self, routine: str, b: np.ndarray) -> np.ndarray:
        """Apply the factors to columns of shape (m, nrhs), on the host, as the routine does."""

    @abc.abstractmethod
    def solve_lu(self, perm: np.ndarray, b: np.ndarray, adjoint: bool = False) -> np.ndarray:
        """Solve A X = B or A^H X = B, where A[perm] = L U."""

    def answer(
        self, b: Any, solve: Callable[[np.ndarray], np.ndarray], *, conjugate: bool = False
    ) -> Any:
        """Apply `solve` to the columns of `b`, which has one or two dimensions.

        With `conjugate`, apply it to the conjugate of `b`, and return the conjugate of the result.
        Return None if the GPUs lack memory, or a worker is lost, and the host has the factors, too.
        """
        b = np.asarray(b, self.dtype)
        turn = np.conj if conjugate else np.asarray
        try:
            x = turn(solve(turn(b).reshape(len(b), -1)))
        except (MemoryError, RunAbortedError):
            if not self._copies:
                raise
            self.release()
            return None
        return x.reshape(len(x), *b.shape[1:])


class KeptFactors(Kept):
    """Factors that a run has left with this process's workers.

    The workers' memory is used until this object is deleted or released.

    Parameters
    ----------
    plan : Plan
        Plan of the run.
    client : distributed.Client
        Client of the workers that hold the shards.
    outcome : Outcome
        Outcome of the run, with its shards and the per-step values that were kept.
    copies : bool, optional
        Whether the factors are also on the host.
    """

    def __init__(self, plan: Plan, client: Any, outcome: Outcome, *, copies: bool = False) -> None:
        super().__init__(copies=copies)
        self._plan, self._client = plan, client
        self._held: tuple[dict[int, Shard], dict[Name, Any]] | None
        self._held = outcome.shards, outcome.kept

    def release(self) -> None:
        """Free the memory."""
        super().release()
        self._held = None

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self._plan.dtype

    @property
    def there(self) -> bool:
        """Whether the factors have not been released, and the cluster still runs."""
        return self._held is not None and self._client.status == "running"

    @property
    def place(self) -> str:
        """Whose memory holds the factors, in words."""
        return workers_text(self._plan.workers)

    def solve(self, routine: str, b: np.ndarray) -> np.ndarray:
        """Run a routine on right-hand sides of shape (m, nrhs), on the host."""
        held = self._held
        if held is None:
            raise RunAbortedError("the factors have been released")
        plan = follow_up(self._plan, routine, b.shape[1])
        job = plan.job()
        job.kept, job.given = held
        x = np.empty(b.shape, plan.dtype, order="F")
        with traced(job) as keep:
            storage = ArrayStorage(None, x, b, absent=plan.layout.n)
            keep(plan, run_local(self._client, job, storage))
        return x

    def solve_lu(self, perm: np.ndarray, b: np.ndarray, adjoint: bool = False) -> np.ndarray:
        """Solve A X = B or A^H X = B, where A[perm] = L U."""
        if not adjoint:
            return self.solve("lu_solve", b[perm])
        x = np.empty_like(b)
        x[perm] = self.solve("lu_solve_adjoint", b)
        return x


class FactorsOnGpu(Kept):
    """Factors of a host matrix that are also on a GPU of the calling thread, whole.

    Parameters
    ----------
    packed : cupy.ndarray, shape (m, n)
        The packed factors.
    beside : cupy.ndarray, or bool
        Scalars of the reflectors of QR, interchanges of LU, or whether a Cholesky factor is lower.
    """

    def __init__(self, packed: Any, beside: Any) -> None:
        super().__init__(copies=True)
        self._arrays: tuple[Any, Any] | None = (packed, beside)

    def release(self) -> None:
        """Free the memory."""
        super().release()
        self._arrays = None

    @property
    def dtype(self) -> Any:
        """Element type."""
        held = self._arrays  # another thread may release them
        return held[0].dtype if held else None

    @property
    def there(self) -> bool:
        """Whether the factors have not been released, and can be used in this process."""
        return self._arrays is not None and not forked_after_cuda()

    @property
    def place(self) -> str:
        """The GPU that holds the factors."""
        held = self._arrays  # another thread may release them
        return f"GPU {device_index(held[0])}" if held else ""

    def solve(self, routine: str, b: np.ndarray) -> np.ndarray:
        """Apply the factors to columns on the host, as a run of the routine does."""
        held = self._arrays
        if held is None:
            raise RunAbortedError("the factors have been released")
        with on_device_of(held[0]):
            return to_host(self._apply(routine, *held, to_device(np.asfortranarray(b))))

    def _apply(self, routine: str, packed: Any, beside: Any, b: Any) -> Any:
        if routine.startswith("qr_"):
            multiply_by_q(packed, beside, b, adjoint=routine != "qr_multiply")
            if routine == "qr_solve":
                n = packed.shape[1]
                solve_upper(packed[:n], b[:n], adjoint=False)
            return b
        if routine != "cho_solve":
            lu_solve(packed, beside, b, adjoint=routine == "lu_solve_adjoint")
            return b
        # Of U, the lower triangle of A^T was factored: its array is the transpose of this one.
        lower = packed if beside else packed.T
        return solve_with_cholesky(lower, b, lower=True)

    def solve_lu(self, perm: np.ndarray, b: np.ndarray, adjoint: bool = False) -> np.ndarray:
        """Solve A X = B or A^H X = B."""
        return self.solve("lu_solve_adjoint" if adjoint else "lu_solve", b)
