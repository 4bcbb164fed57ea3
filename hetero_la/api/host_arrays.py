"""Functions computed where their arrays are not, if that is faster.

Those of arrays on the host are computed on a GPU of the calling thread, and those of small arrays
on a GPU on the host.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from hetero_la.api.factors import Factors, with_each_array
from hetero_la.checks.inputs import common_dtype, lapack_dtype
from hetero_la.checks.warnings import warn, without_warnings
from hetero_la.execution.gpu_choice import HostProblem, gpu_for, gpus_possible, host_pays
from hetero_la.execution.report import Report
from hetero_la.execution.resident_factors import FactorsOnGpu, Kept
from hetero_la.planning.decisions import Problem
from hetero_la.tiles.arrays.around_run import around_run
from hetero_la.tiles.arrays.forks import ProcessLock
from hetero_la.tiles.arrays.transfer import (
    device_index,
    is_device_array,
    on_device_index,
    on_device_of,
    small_to_device,
    to_host,
)
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.kernels.gpu_libraries.finite import LateTest, is_finite
from hetero_la.tiles.storage.host_copies import HostCopies

#: Elements of a matrix below which no GPU is considered: the host is done within its copies; and
#: those up to which the host is considered for a matrix on a GPU.
LEAST_ELEMENTS, MOST_ELEMENTS = 1 << 15, 1 << 17
#: Elements up to which copies on a GPU are tested for NaN behind the run.
_CHECKED_LATE = 1 << 24
_copying = ProcessLock()


class Work(NamedTuple):
    """What a function computes.

    Attributes
    ----------
    routine : str
        A key of `ROUTINES`.
    columns : int
        Columns that it makes beside the matrix and its right-hand sides.
    results : int
        Elements of the results.
    holds : callable, optional
        Takes the arrays by name, and returns whether what has been taken for granted holds.
    known : tuple of (str, object)
        Arguments that take the place of those given then.
    unread : bool
        Whether nothing reads the matrix before the run if it is neither tested for NaN nor
        overwritten.
    turned : bool
        Whether the routine is run on the transpose.
    values : bool
        Whether the singular values of the triangle are found, too.
    """

    routine: str
    columns: int = 0
    results: int = 0
    holds: Callable[[dict[str, Any]], bool] | None = None
    known: tuple[tuple[str, Any], ...] = ()
    unread: bool = False
    turned: bool = False
    values: bool = False


#: Given the bound arguments and the matrix, returns the work; None if the host has to do it.
WorkOf = Callable[[dict[str, Any], int, int], "Work | None"]


class Movable(NamedTuple):
    """A function that may be computed where its arrays are not.

    Attributes
    ----------
    function : callable
        The function, for arrays of any place.
    work_of : callable
        What it computes.
    core : tuple of str
        Names of its array arguments.
    signature : inspect.Signature
        Of the function.
    """

    function: Callable[..., Any]
    work_of: WorkOf
    core: tuple[str, ...]
    signature: inspect.Signature


def is_worth_copying(a: np.ndarray) -> bool:
    """Return whether a matrix is large enough for a GPU to be considered, and there may be one."""
    return a.size >= LEAST_ELEMENTS and gpus_possible()


def on_a_gpu(movable: Movable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
    """Compute on a GPU what is predicted to be there first, copies counted.

    Parameters
    ----------
    movable : Movable
        The function.
    args, kwargs
        Its arguments.

    Returns
    -------
    tuple or None
        The result, on the host; None if the function is to be called with these arguments.
    """
    if not gpus_possible():
        return None
    request = _request(movable, args, kwargs, lambda a: type(a) is np.ndarray)
    gpu = None if request is None else gpu_for(request.asked)
    if request is None or gpu is None:
        return None
    arguments, arrays, work, asked = request
    cast = {name: a.astype(asked.problem.dtype, copy=False) for name, a in arrays.items()}
    if work.holds and not work.holds(cast):
        return None
    call = partial(movable.function, **{**arguments, **dict(work.known)})
    try:
        with _copying, on_device_index(gpu):
            began, copies = time.perf_counter(), _copies(gpu)
            arriving, late = _Arriving(copies, cast), _may_be_late(movable, call, cast)
            if not (late and work.unread):
                arriving.complete()
            found = _checked_late(call, arriving, cast) if late else call(**arriving.arrays)
            computed = time.perf_counter()
            here = _home(found, copies)
    except MemoryError:  # of the GPU
        return None
    for report in _reports(here):
        now = time.perf_counter()
        report.include_copies(now - began, arriving.seconds, now - computed)
    return (here,)


class _Arriving:
    """Copies of a call's arrays on the current GPU, the first of which comes last.

    Parameters
    ----------
    copies : HostCopies
        Copies arrays to the GPU.
    arrays : dict
        Their names, and the arrays on the host.
    """

    def __init__(self, copies: HostCopies, arrays: dict[str, np.ndarray]) -> None:
        began = time.perf_counter()
        (name, first), *others = arrays.items()
        there, self._fill = copies.to_gpu_later(first)
        self.arrays = {name: there, **{name: copies.to_gpu(a) for name, a in others}}
        self.seconds = time.perf_counter() - began  # that the copies have taken so far

    def complete(self) -> None:
        """Copy the first array, if that has not been done yet."""
        began = time.perf_counter()
        self._fill()
        self._fill = lambda: None
        self.seconds += time.perf_counter() - began


def _may_be_late(movable: Movable, call: partial[Any], arrays: dict[str, np.ndarray]) -> bool:
    """Return whether a test for NaN is asked for, and need not come before all work.

    The arrays are copies, so that nothing of the caller's can be spoiled, and so small that to wait
    for the test would be a notable part of the call.
    """
    if not call.keywords.get("check_finite", "check_finite" in movable.signature.parameters):
        return False
    return all(a.size <= _CHECKED_LATE for a in arrays.values())


def _checked_late(call: partial[Any], arriving: _Arriving, on_host: dict[str, np.ndarray]) -> Any:
    """Make a call whose large arrays are tested for NaN behind its run, which leaves them as is."""
    if not all(is_finite(a) for a in on_host.values() if a.size <= LEAST_ELEMENTS):
        LateTest(on_host).require_finite()
    test = LateTest({
        name: there for name, there in arriving.arrays.items() if there.size > LEAST_ELEMENTS
    })  # fmt: skip
    kept = {name: False for name in call.keywords if name.startswith("overwrite_")}
    with without_warnings() as held, around_run(arriving.complete, test.enqueue):
        try:
            found = call(**arriving.arrays, **kept, check_finite=False)
        except LinAlgError:
            arriving.complete()
            test.require_finite()
            raise
    test.require_finite()
    for message, category in held:  # all is finite
        warn(message, category)
    return found


def on_the_host(
    movable: Movable, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """Compute on the host, with small arrays of a GPU, what is predicted to be done there first.

    See `on_a_gpu` for the parameters.
    """
    request = _request(movable, args, kwargs, is_device_array)
    if request is None or len({device_index(a) for a in request.arrays.values()}) > 1:
        return None
    like = next(iter(request.arrays.values()))
    if not host_pays(request.asked, like.device.id):
        return None
    with on_device_of(like):
        given = {name: to_host(a) for name, a in request.arrays.items()}
        return (_back(movable.function(**{**request.arguments, **given})),)


class _Request(NamedTuple):
    """The arguments of a call, the arrays among them, and what is to be computed."""

    arguments: dict[str, Any]
    arrays: dict[str, Any]
    work: Work
    asked: HostProblem


def _request(
    movable: Movable, args: tuple[Any, ...], kwargs: dict[str, Any], fits: Callable[[Any], bool]
) -> _Request | None:
    """Return what a call asks for; None unless it may be computed elsewhere."""
    try:
        arguments = movable.signature.bind(*args, **kwargs).arguments
    except TypeError:  # which the call will raise
        return None
    arrays = {name: arguments[name] for name in movable.core if arguments.get(name) is not None}
    plain = all(fits(a) and a.ndim in (1, 2) and a.size for a in arrays.values())
    free = arguments.get("client") is None and not arguments.get("options")
    if len(arrays) < len(movable.core) or not plain or not free:
        return None
    work, asked = _asked(movable.work_of, list(arrays.values()), arguments)
    return None if work is None or asked is None else _Request(arguments, arrays, work, asked)


def _asked(
    work_of: WorkOf, arrays: list[np.ndarray], arguments: dict[str, Any]
) -> tuple[Work | None, HostProblem | None]:
    """Return what is asked for; None if that is for the host alone, or an error."""
    a, *beside = arrays
    m, n = a.shape if a.ndim == 2 else (0, 0)
    work = work_of(arguments, m, n) if m else None
    if work is None or any(len(b) != m for b in beside):
        return None, None
    try:
        dtype = common_dtype(a.dtype, beside[0].dtype) if beside else lapack_dtype(a.dtype, "a")
    except ValueError:
        return None, None
    nrhs = sum(b.size // m for b in beside) + work.columns
    rows, columns = (n, m) if work.turned else (m, n)
    problem = Problem(work.routine, rows, columns, nrhs, dtype)
    return work, HostProblem(problem, work.results, work.values)


@functools.cache
def _copies(gpu: int) -> HostCopies:
    return HostCopies(GpuDevice(gpu, "copies"))  # a device serves one thread at a time


def _reports(found: Any) -> list[Report]:
    """Return the reports that a result has."""
    if isinstance(found, Factors):
        return [found._report]
    return [part for part in found if isinstance(part, Report)] if type(found) is tuple else []


def _home(found: Any, copies: HostCopies) -> Any:
    """Copy results to the host; LU, Cholesky and QR factors stay on the GPU, too."""

    def kept(factors: Factors) -> Kept | None:
        square_or_tall = factors.shape[0] >= factors.shape[1]
        return FactorsOnGpu(*factors) if square_or_tall else None

    return with_each_array(
        found, lambda part: copies.to_host(part) if is_device_array(part) else part, kept
    )


def _back(found: Any) -> Any:
    """Copy results to the current GPU."""
    return with_each_array(
        found, lambda part: small_to_device(part) if isinstance(part, np.ndarray) else part
    )
