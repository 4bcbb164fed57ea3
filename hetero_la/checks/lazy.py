"""Dask arrays: functions of arrays hand them on to their lazy counterparts."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_loaders: list[Callable[[], ModuleType]] = []


def provide_lazy_functions(load: Callable[[], ModuleType]) -> None:
    """Say how the module of the lazy functions is loaded, once a Dask array is given to one."""
    _loaders[:] = [load]


def lazy_function(name: str) -> Callable[..., Any]:
    """Return the function of Dask arrays of this name; raise TypeError where there is none."""
    found = getattr(_loaders[0](), name, None)
    if found is None:
        raise TypeError(f"{name} does not take dask arrays: compute them first")
    return found


def takes_dask_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of arrays take Dask arrays, too, among its arguments or in a tuple there.

    What it then calls is the function of the same name in `hetero_la.dask_arrays`.  Where
    there is none, it raises a `TypeError`.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _has_dask_array((*args, *kwargs.values())):
            return function(*args, **kwargs)
        return lazy_function(function.__name__)(*args, **kwargs)

    return wrapped


def is_dask_array(value: Any) -> bool:
    """Whether `value` is a Dask array."""
    module = sys.modules.get("dask.array")  # whoever has a dask array has imported it
    return module is not None and isinstance(value, module.Array)


def _has_dask_array(values: Iterable[Any]) -> bool:
    return any(
        is_dask_array(entry)
        for value in values
        for entry in (value if isinstance(value, tuple) else (value,))
    )
