"""Exceptions of the runtime."""

from __future__ import annotations


class HeteroLAError(RuntimeError):
    """Base of the runtime's own errors."""


class StaleShardError(HeteroLAError):
    """A shard is not at the step at which the next kernel has to start.

    In-place updates make a second execution of the same work wrong; the
    executor raises this instead of computing on half-updated data.
    """


class DeviceUnavailableError(HeteroLAError, ValueError):
    """More or other devices were asked for than this machine has."""


class UnsupportedDtypeError(TypeError, ValueError):
    """The dtype of an array is not numeric, or cannot be cast to one of LAPACK's.

    Some of SciPy's functions raise TypeError here, and some ValueError: it is both.
    """


class InsufficientMemoryError(HeteroLAError, MemoryError):
    """The workers do not have the memory that a run needs.

    Attributes
    ----------
    on_gpu : bool
        Whether the memory of a GPU is too small.
    """

    on_gpu = False


class RunAbortedError(HeteroLAError):
    """Another worker of the run failed, or the run was cancelled."""


class KernelTimeoutError(HeteroLAError):
    """Blocks of a kernel have waited in vain for each other: its results are invalid."""


class WorkerLostError(RunAbortedError):
    """A worker of the run has left the cluster, or has been paused for too long."""


class LinkLostError(RunAbortedError):
    """Another process cannot be reached, or has gone."""
