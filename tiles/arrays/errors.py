"""Errors that the runtime raises by name."""

from __future__ import annotations


class HeteroLAError(RuntimeError):
    """Base of the runtime's own errors."""


class StaleShardError(HeteroLAError):
    """A shard is not at the step that the next kernel expects.

    In-place updates make a second execution of the same work wrong; the
    executor raises this instead of computing on half-updated data.
    """


class DeviceUnavailableError(HeteroLAError, ValueError):
    """More or other devices were asked for than this machine has."""


class UnsupportedDtypeError(TypeError, ValueError):
    """Numbers of a type that cannot be cast to one of LAPACK's, or no numbers at all.

    Of SciPy's functions some raise a TypeError, and some a ValueError: it is both.
    """


class InsufficientMemoryError(HeteroLAError, MemoryError):
    """The workers do not have the memory that a run needs.

    Attributes
    ----------
    on_gpu : bool
        Whether it is a GPU that is short of it.
    """

    on_gpu = False


class RunAbortedError(HeteroLAError):
    """Another worker of the run failed, or the run was cancelled."""


class KernelTimeoutError(HeteroLAError):
    """Blocks of a kernel have waited in vain for each other: what it made is not to be used."""


class WorkerLostError(RunAbortedError):
    """A worker of the run has left the cluster, or is paused for good."""
