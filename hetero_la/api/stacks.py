"""Functions of one matrix, applied to arrays of any kind and to stacks of matrices, as in SciPy."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from hetero_la.api.factors import with_each_array
from hetero_la.api.host_arrays import (
    MOST_ELEMENTS,
    Movable,
    WorkOf,
    is_worth_copying,
    on_a_gpu,
    on_the_host,
)
from hetero_la.checks.inputs import refuse_masked
from hetero_la.checks.lazy import is_dask_array, lazy_function
from hetero_la.execution.timeline import recording
from hetero_la.tiles.arrays.foreign import (
    is_foreign,
    is_immutable,
    like_foreign,
    one_kind,
    to_native,
    without_labels,
)
from hetero_la.tiles.arrays.transfer import (
    array_module,
    current_gpu,
    device_index,
    is_device_array,
    on_device_of,
    on_device_of_arrays,
    require_cuda,
    to_host,
)

F = TypeVar("F", bound=Callable[..., Any])
#: Order, and bytes of a row, up to which one matrix on a GPU is factored as a stack of one: a block
#: takes longer than a library's kernels, but there are fewer calls.
_MOST_ALONE, _MOST_BYTES_ALONE = 192, 2048
#: Arguments by name that do not keep a matrix from being so treated.
_PLAIN = frozenset({"assume_a", "check_finite", "lower", "transposed"})


class Uncertain(NamedTuple):
    """What was found of a stack, and which of its matrices are to be looked at alone."""

    found: Any
    numbers: Sequence[int]


def unless(doubts: Any, found: Any) -> Any:
    """Return what was found of a stack, without the matrices of which there are doubts."""
    doubts = to_host(doubts)
    return Uncertain(found, np.flatnonzero(doubts).tolist()) if doubts.any() else found


def failures(info: Any, check_finite: bool) -> np.ndarray:
    """Return of which matrices LAPACK's info is not 0; -1 (not finite) only counts on request."""
    info = to_host(info)
    return np.asarray(info != 0 if check_finite else info > 0)


def array_function(
    together: Callable[..., Any] | None = None, work_of: WorkOf | None = None, *,
    alone: Callable[..., Any] | None = None, stacks: bool = True, **core: int | str,
) -> Callable[[F], F]:  # fmt: skip
    """Decorate a public function of NumPy and CuPy arrays so that it takes all arrays.

    If an argument, or an entry of a tuple argument, is a Dask array, the function of the same name
    in `hetero_la.dask_arrays` is called instead; if there is none, a `TypeError` is raised.
    Otherwise the GPU of the arrays is made current, and with `stacks` stacks of them are split:
    see `on_device_of_arrays` and `over_stacks`, which has the parameters.  With `work_of`, large
    arrays on the host go to a GPU, and small ones on a GPU to the host, where that is predicted to
    be faster.  `alone` is called first for one small square matrix on the current GPU, and may
    return None: see `as_stack_of_one`.  Arrays of other libraries are converted first, and results
    back: see `foreign_too`.
    """

    def decorate(function: F) -> F:
        split = over_stacks(together, **core)(function) if stacks else function
        eager = on_device_of_arrays(split)
        ndims = [_most_dimensions(ndim) for ndim in core.values()]
        signature = inspect.signature(function)
        movable = work_of and Movable(function, work_of, tuple(core), signature)
        plain = _PLAIN & signature.parameters.keys()

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if ndims and len(args) >= len(ndims):  # of small matrices each test below counts
                for value, ndim in zip(args, ndims, strict=False):
                    if type(value) is not np.ndarray or value.ndim > ndim:
                        break
                else:
                    if movable is None or not is_worth_copying(args[0]):
                        return function(*args, **kwargs)
                if _are_on_current_gpu(args, len(ndims)):
                    with on_device_of(args[0]):
                        if alone and kwargs.keys() <= plain and _is_small(args, len(ndims)):
                            found = alone(*args, **kwargs)
                            if found is not None:
                                return found
                        large = args[0].size > MOST_ELEMENTS or args[0].ndim > ndims[0]
                        if movable is None or large:
                            return split(*args, **kwargs)
            entries = _entries(args, kwargs)
            if any(map(is_foreign, entries)):
                return _converted(wrapped, args, kwargs)
            if any(map(is_dask_array, entries)):
                return lazy_function(function.__name__)(*args, **kwargs)
            if movable is not None:
                sizes = [value.size for value in entries if is_device_array(value)]
                if not sizes or max(sizes) <= MOST_ELEMENTS:
                    elsewhere = on_the_host if sizes else on_a_gpu
                    found = elsewhere(movable, args, kwargs)
                    if found is not None:
                        return found[0]
            return eager(*args, **kwargs)

        vars(wrapped)["movable"] = movable
        return cast(F, wrapped)

    return decorate


def _are_on_current_gpu(args: tuple[Any, ...], count: int) -> bool:
    """Return whether the first arguments are arrays on the current GPU."""
    if not is_device_array(args[0]):
        return False
    require_cuda()
    gpu = current_gpu()
    return all(is_device_array(value) and value.device.id == gpu for value in args[:count])


def _is_small(args: tuple[Any, ...], count: int) -> bool:
    """Return whether a call on a GPU, of so many arrays, is for one small square matrix."""
    a, beside = args[0], args[-1]
    return (
        len(args) == count and a.ndim == 2 and 0 < len(a) <= _MOST_ALONE and len(a) == a.shape[1]
        and len(a) * a.itemsize <= _MOST_BYTES_ALONE and beside.ndim <= 2 and beside.size > 0
        and not recording()
    )  # fmt: skip


def as_stack_of_one(together: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of one matrix, and right-hand sides, on a GPU, that treats it as a stack.

    It returns None where `together` does, or where the result is uncertain: then the matrix is
    looked at as others are.
    """

    def alone(a: Any, b: Any = None, **kwargs: Any) -> Any:
        if b is None:
            found = together(a[None], **kwargs)
        elif b.shape[:1] != a.shape[:1]:
            return None
        else:
            found = together(a[None], b.reshape(1, len(b), -1), **kwargs)
        if found is None or isinstance(found, Uncertain):
            return None
        return found.reshape(b.shape) if b is not None else with_each_array(found, lambda x: x[0])

    return alone


def foreign_too(function: F) -> F:
    """Decorate a function of NumPy and CuPy arrays so that it takes those of other libraries.

    They are shared by DLPack and the like, as NumPy or CuPy arrays, and so are the arrays of the
    result, which are of the library and on the device of the arguments.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_foreign, _entries(args, kwargs))):
            return _converted(function, args, kwargs)
        return function(*args, **kwargs)

    return cast(F, wrapped)


def _entries(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments of a call, and the entries of those that are tuples."""
    values = (*args, *kwargs.values())
    return [*itertools.chain(*(v if isinstance(v, tuple) else (v,) for v in values))]


def _converted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with NumPy and CuPy arrays in the place of other libraries' arrays."""
    args, kwargs = _each_foreign(without_labels, args, kwargs)
    like = one_kind(_entries(args, kwargs))
    if like is not None and is_immutable(like):
        bound = inspect.signature(function).bind(*args, **kwargs)
        _keep_inputs(bound)
        args, kwargs = bound.args, bound.kwargs
    args, kwargs = _each_foreign(to_native, args, kwargs)
    found = function(*args, **kwargs)
    if like is None:
        return found

    def back(part: Any) -> Any:
        is_array = isinstance(part, np.ndarray) or is_device_array(part)
        return like_foreign(part, like) if is_array else part

    return with_each_array(found, back)


def _each_foreign(
    convert: Callable[[Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with the arrays of other libraries converted."""

    def changed(part: Any) -> Any:
        return convert(part) if is_foreign(part) else part

    named = {name: with_each_array(value, changed) for name, value in kwargs.items()}
    return tuple(with_each_array(value, changed) for value in args), named


def _keep_inputs(bound: inspect.BoundArguments) -> None:
    """Do not let a call overwrite its arguments."""
    for name in bound.arguments:
        if name.startswith("overwrite_"):
            bound.arguments[name] = False


def over_stacks(together: Callable[..., Any] | None = None, **core: int | str) -> Callable[[F], F]:
    """Decorate a function of matrices and vectors so that it also takes stacks of them.

    Parameters
    ----------
    together : callable, optional
        The same function for stacks with one leading dimension, on the host or on one GPU.  It may
        return None: then its result is found matrix by matrix, and so are errors and warnings;
        for some of the matrices only, if it returns `Uncertain`.
    **core : {1, 2, "1|2"}
        Array arguments, in the order of the signature, and the number of dimensions that the
        function itself takes.  "1|2" is a vector where there is one dimension, and otherwise
        a matrix or a stack of matrices.

    Returns
    -------
    callable
        A decorator.  Plain input goes to the function as it is.  Otherwise the leading
        dimensions are broadcast, the function is called for every matrix, and its results
        are stacked: arrays and numbers to arrays, tuples to plain or named tuples.

    Notes
    -----
    For an empty stack the function is called once, to find the results' shapes and dtypes.

    Examples
    --------
    >>> @over_stacks(a=2)
    ... def trace(a):
    ...     return a.trace()
    >>> trace(np.eye(3)), trace(np.ones((2, 3, 3)))
    (np.float64(3.0), array([3., 3.]))
    >>> trace(np.empty((0, 3, 3)))
    array([], dtype=float64)
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        ndims = [_most_dimensions(ndim) for ndim in core.values()]
        places = [
            name for name, each in signature.parameters.items()
            if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]  # fmt: skip
        shared = signature.parameters.keys() - {*core, "report"}  # further ones of `together`

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for i, (name, ndim) in enumerate(zip(core, ndims, strict=True)):
                value: Any = args[i] if i < len(args) else kwargs.get(name)
                if np.ndim(value) > ndim:
                    break
            else:
                return function(*args, **kwargs)
            found_by = together
            fits = len(args) <= len(places) and kwargs.keys() <= shared - {*places[: len(args)]}
            if together and fits and _are_stacks(args, ndims):
                found = together(*args, **kwargs)
                if found is not None and not isinstance(found, Uncertain):
                    return found
                found_by = _giving(found)
            return _for_each(function, signature.bind(*args, **kwargs), core, found_by)

        return cast(F, wrapped)

    return decorate


def _are_stacks(args: tuple[Any, ...], ndims: list[int]) -> bool:
    """Return whether the first arguments are stacks of one length, not empty, on one device."""
    if len(args) < len(ndims):
        return False
    first = args[0]
    on_gpu = is_device_array(first)
    for value, ndim in zip(args, ndims, strict=False):
        if on_gpu:
            if not is_device_array(value) or value.device != first.device:
                return False
        elif type(value) is not np.ndarray:
            return False
        if value.ndim != ndim + 1 or not value.size or len(value) != len(first):
            return False
    return True


def _giving(found: Any) -> Callable[..., Any]:
    """Return a function that returns what has been found."""
    return lambda *args, **kwargs: found


def _most_dimensions(ndim: int | str) -> int:
    """Return the most dimensions of one matrix or vector."""
    return 2 if ndim == "1|2" else int(ndim)


def _for_each(
    function: Callable[..., Any], bound: inspect.BoundArguments, core: dict[str, int | str],
    together: Callable[..., Any] | None,
) -> Any:  # fmt: skip
    """Call the function for every matrix, and stack the results."""
    if bound.arguments.get("report"):
        raise ValueError("report=True is for one matrix, and not for a stack")
    given = {name: bound.arguments[name] for name in core if bound.arguments.get(name) is not None}
    for a in given.values():
        refuse_masked(a)
    arrays = {name: a if is_device_array(a) else np.asarray(a) for name, a in given.items()}
    split = {name: _split(a.shape, core[name]) for name, a in arrays.items()}
    batch = _common_batch(arrays, [leading for leading, _ in split.values()])
    _keep_inputs(bound)  # broadcast: one matrix may be used several times
    xp = array_module(next(iter(arrays.values())))
    if 0 in batch:
        one = {name: _placeholder(a, split[name][1]) for name, a in arrays.items()}
        bound.arguments.update(one)
        return _stack([function(*bound.args, **bound.kwargs)], xp, batch)
    whole = {name: _broadcast(a, batch + split[name][1]) for name, a in arrays.items()}

    def alone(index: tuple[int, ...]) -> Any:
        bound.arguments.update({name: a[index] for name, a in whole.items()})
        try:
            return function(*bound.args, **bound.kwargs)
        except Exception as error:
            error.add_note(f"This concerns matrix {index} of a stack of shape {batch}.")
            raise

    if together and len({device_index(a) for name, a in arrays.items() if core[name]}) == 1:
        for name, a in whole.items():
            one = a if len(batch) == 1 else a.reshape(math.prod(batch), *split[name][1])
            bound.arguments[name] = one
        found = together(*bound.args, **bound.kwargs)
        if isinstance(found, Uncertain):
            every = list(np.ndindex(batch))
            for number in found.numbers:
                _put(found.found, number, alone(every[number]))
            found = found.found
        if found is not None:
            return found if len(batch) == 1 else _with_leading(found, batch)
    return _stack([alone(index) for index in np.ndindex(batch)], xp, batch)


def _common_batch(arrays: dict[str, Any], leading: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the leading dimensions that stacks have together; raise ValueError without these."""
    try:
        return leading[0] if len(set(leading)) == 1 else np.broadcast_shapes(*leading)
    except ValueError:
        shapes = ", ".join(f"{name} of shape {a.shape}" for name, a in arrays.items())
        raise ValueError(
            f"shape mismatch: these stacks cannot be broadcast together: {shapes}"
        ) from None


def _broadcast(a: Any, shape: tuple[int, ...]) -> Any:
    return a if a.shape == shape else array_module(a).broadcast_to(a, shape)


def _put(found: Any, number: int, one: Any) -> None:
    """Store the result for one matrix in that for the stack."""
    if isinstance(found, tuple):
        for part, value in zip(found, one, strict=True):
            _put(part, number, value)
    elif found is not None:
        found[number] = array_module(found).asarray(one)


def _with_leading(found: Any, batch: tuple[int, ...]) -> Any:
    """Give an array, or the arrays of a tuple, the leading dimensions of the stack."""
    if found is None:
        return None
    if isinstance(found, tuple):
        parts = [_with_leading(part, batch) for part in found]
        return found._make(parts) if hasattr(found, "_make") else tuple(parts)
    return found.reshape(batch + found.shape[1:])


def _split(shape: tuple[int, ...], ndim: int | str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split a shape into leading dimensions and those of one matrix or vector."""
    own = min(len(shape), 2) if ndim == "1|2" else int(ndim)
    at = max(len(shape) - own, 0)
    return shape[:at], shape[at:]


def _placeholder(a: Any, shape: tuple[int, ...]) -> Any:
    """Return a valid argument of this shape: an identity matrix or a zero vector."""
    xp = array_module(a)
    return xp.eye(*shape, dtype=a.dtype) if len(shape) == 2 else xp.zeros(shape, a.dtype)


def _stack(results: Sequence[Any], xp: ModuleType, batch: tuple[int, ...]) -> Any:
    """Stack results of one kind into arrays of `xp` with the leading dimensions `batch`."""
    first = results[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        parts = [_stack(part, xp, batch) for part in zip(*results, strict=True)]
        return first._make(parts) if hasattr(first, "_make") else tuple(parts)
    stacked = array_module(first).stack(results)
    if xp is not np:  # numbers are on the host
        stacked = xp.asarray(stacked)
    return stacked[: math.prod(batch)].reshape(batch + stacked.shape[1:])
