"""Stacks of matrices: LAPACK for each of them in threads, or kernels for all of them on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from hetero_la.algorithms.routines import ROUTINES
from hetero_la.execution.one_call import about_seconds, library_call, takes_one_call
from hetero_la.planning.decisions import Problem
from hetero_la.tiles.arrays.copies import copy_on_host
from hetero_la.tiles.arrays.transfer import is_device_array
from hetero_la.tiles.kernels.cpu.blas_threads import blas_bound
from hetero_la.tiles.kernels.cpu.device import usable_cores
from hetero_la.tiles.kernels.gpu.batched import functions

#: Elements of a matrix from which threads gain more than passing the interpreter's lock costs; and
#: elements for each of them, fewer where a routine has more work for an element.
_LEAST, _SHARE, _SHARE_OF_MORE = 128**2, 112**2, 64**2
_MORE = ("qr", "explicit_q", "lstsq", "minimum_norm", "inverse")
#: What keeps the interpreter's lock in each call.
_KEEPING_LOCK = ("cho_solve",)
#: Seconds of work that are worth the start of a thread.
_WORTH_A_THREAD = 5e-4
#: Bytes of matrices that stay in cache from one pass over them to the next.
_IN_CACHE = 1 << 20


class Stack(NamedTuple):
    """What a routine leaves of a stack of matrices, or of a part of it.

    Attributes
    ----------
    factors : array, shape (count, m, n)
        The overwritten matrices, each column-major.
    beside : array, shape (count, m, nrhs)
        The overwritten columns beside them.
    vectors : dict
        Name -> the vectors of all matrices, in an array of shape (count, ...).
    found : tuple of array, each of shape (count, ...)
        What was found of the matrices after that.
    """

    factors: Any
    beside: Any
    vectors: dict[str, Any]
    found: tuple[Any, ...] = ()


#: What is found of a part of a stack after LAPACK; also takes which matrices it has.
Then = Callable[[Stack, slice], tuple[Any, ...]]


def run_for_each(
    routine: str, a: Any, b: Any = None, *, columns: int = 0, then: Then | None = None,
    keep: bool = True, client: Any = None, **options: Any,
) -> Stack | None:  # fmt: skip
    """Run a routine on each matrix of a stack by LAPACK, several at once if there are many.

    Parameters
    ----------
    routine, columns, client, **options
        As for `execute`.
    a : array, shape (count, m, n)
        The matrices.
    b : array, shape (count, m, nrhs), optional
        Right-hand sides.
    then : callable, optional
        Takes each part of the stack while it is in cache, in the thread that has run the routine
        on it; it may overwrite the part.
    keep : bool, optional
        Whether factors and columns are returned, or only what `then` has found.

    Returns
    -------
    Stack or None
        None if a run for one matrix after another is better.
    """
    if client is not None or options:
        return None
    (count, m, n), nrhs = a.shape, columns if b is None else b.shape[2]
    if is_device_array(a):
        assert b is None  # `solve_stack_on_gpu` takes right-hand sides
        return _run_on_gpu(ROUTINES[routine].library, a, columns, then)
    if are_few(count) or not takes_one_call(routine, a[0], nrhs):
        return None
    problem, call = Problem(routine, m, n, nrhs, a.dtype), library_call(routine)
    threads = threads_for(count, problem)
    whole = [_columns(count if keep else 0, (m, k), a.dtype) for k in (n, nrhs)]
    names: list[str] = []
    gathered = _Gathered(count)

    def run(part: slice) -> None:
        size = part.stop - part.start
        factors, beside = (x[part] if keep else _columns(size, x.shape[1:], a.dtype) for x in whole)
        if size > 1:  # small ones
            factors[...] = a[part]
        else:
            copy_on_host(factors[0], a[part.start])
        if b is not None:
            beside[...] = b[part]
        some = [call(factors[i], beside[i], threads > 1) for i in range(size)]
        vectors = {name: np.array([one[name, 0] for one in some]) for name, _ in some[0]}
        names[:] = vectors
        found = then(Stack(factors, beside, vectors), part) if then else ()
        gathered.put(part, (*vectors.values(), *found))

    for_parts(run, count, threads, m * (n + nrhs) * a.itemsize)
    vectors = dict(zip(names, gathered.arrays, strict=False))
    return Stack(whole[0], whole[1], vectors, tuple(gathered.arrays[len(names) :]))


def are_few(count: int) -> bool:
    """Return whether one matrix after another, each by all cores, is better than some at once."""
    return count < usable_cores()


def _run_on_gpu(name: str, a: Any, columns: int, then: Then | None) -> Stack | None:
    """Run the routine of this name for all matrices of a stack on the current GPU."""
    if name not in functions.FACTORS or not functions.takes(name, a.shape):
        return None
    try:
        done = Stack(*functions.FACTORS[name](a, columns))
        return done._replace(found=then(done, slice(0, len(a)))) if then else done
    except functions.out_of_memory():  # one matrix after another takes less
        return None


def solve_stack_on_gpu(name: str, a: Any, *rest: Any, client: Any = None, **options: Any) -> Any:
    """Return what a function of `functions.SOLVES` does; None where `run_for_each` does."""
    if client is not None or options or not functions.takes(name, a.shape):
        return None
    try:
        return functions.SOLVES[name](a, *rest)
    except functions.out_of_memory():
        return None


class _Gathered:
    """Arrays of a stack that are filled by parts, from several threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def put(self, part: slice, arrays: tuple[np.ndarray, ...]) -> None:
        """Store what was found of a part; all parts have arrays of the same kinds."""
        with self._lock:
            if not self.arrays:
                self.arrays = [_columns(self.count, x.shape[1:], x.dtype) for x in arrays]
        for whole, x in zip(self.arrays, arrays, strict=True):
            whole[part] = x


def _columns(count: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate a stack of column-major matrices, or of vectors or numbers."""
    stack = np.empty((count, *shape[::-1]), dtype)
    return stack.swapaxes(1, 2) if len(shape) == 2 else stack


def threads_for(count: int, problem: Problem) -> int:
    """Return how many threads pay for so many runs of LAPACK; 0 if they are over at once.

    One run is left to the threads of BLAS.
    """
    if count == 1:
        return 0
    size, share = problem.m * problem.n, _SHARE_OF_MORE if problem.routine in _MORE else _SHARE
    gains = size // share if size >= _LEAST and problem.routine not in _KEEPING_LOCK else 1
    worth = int(count * about_seconds(problem) / _WORTH_A_THREAD)
    return min(gains, worth, usable_cores(), count)


def solve_each(
    solve: Callable[[int, np.ndarray], np.ndarray], routine: str, b: Any, dtype: Any
) -> np.ndarray:
    """Solve with each matrix of a stack that is factored, several at once if there are many.

    Parameters
    ----------
    solve : callable
        Takes the number of a matrix and its columns, which it may overwrite.
    routine : str
        What it does, a key of `ROUTINES`.
    b : array, shape (count, n, nrhs)
        Right-hand sides.
    dtype : dtype
        Of the solutions.
    """
    count, n, nrhs = b.shape
    x = _columns(count, (n, nrhs), dtype)

    def run(part: slice) -> None:
        x[part] = b[part]
        for i in range(part.start, part.stop):
            found = solve(i, x[i])
            if found is not x[i]:  # SciPy's wrappers copy what is not aligned
                x[i] = found

    for_parts(run, count, threads_for(count, Problem(routine, n, n, nrhs, x.dtype)), x[0].nbytes)
    return x


def solve_parts(
    solve: Callable[[np.ndarray, np.ndarray, np.ndarray, bool], np.ndarray],
    a: np.ndarray, b: np.ndarray, like: Problem | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Solve with each matrix of a stack on the host, several at once if there are many.

    Parameters
    ----------
    solve : callable
        Takes a part of the stack, its right-hand sides, a copy of these that it overwrites, and
        whether other threads do the same; returns a number for each matrix.
    a, b : array, shape (count, n, n) and (count, n, nrhs)
        The matrices, and right-hand sides.
    like : Problem or None
        What takes as long for one matrix; None if threads would only wait for the interpreter.

    Returns
    -------
    tuple of array
        X and the numbers.
    """
    count, n, nrhs = b.shape
    threads = 0 if like is None else threads_for(count, like)
    x, numbers = _columns(count, (n, nrhs), a.dtype), np.empty(count)

    def run(part: slice) -> None:
        x[part] = b[part]
        numbers[part] = solve(a[part], b[part], x[part], threads > 1)

    for_parts(run, count, threads, a[0].nbytes + x[0].nbytes)
    return x, numbers


def for_parts(run: Callable[[slice], None], count: int, threads: int, size: int) -> None:
    """Call `run` with parts of a stack of `count` matrices of `size` bytes each that fit in cache.

    The parts are shared by so many threads, each with one thread of BLAS.
    """
    step = max(_IN_CACHE // max(size, 1), 1)

    def run_share(share: range) -> None:
        for first in share[::step]:
            run(slice(first, min(first + step, share.stop)))

    if not threads:
        run_share(range(count))
        return
    most = -(-count // threads)
    shares = [range(count)[first : first + most] for first in range(0, count, most)]
    with blas_bound(1):
        if threads == 1:
            run_share(*shares)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run_share, shares))
