"""Dask arrays: functions of arrays hand them on to their lazy counterparts."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def takes_dask_arrays(function: F) -> F:
    """Let a function of arrays take Dask arrays, too, among its arguments or in a tuple there.

    What it then calls is the function of the same name in `hetero_la.dask_arrays`.  Where
    there is none, it raises a `TypeError`.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not _has_dask_array((*args, *kwargs.values())):
            return function(*args, **kwargs)
        lazy = getattr(importlib.import_module("hetero_la.dask_arrays"), function.__name__, None)
        if lazy is None:
            raise TypeError(f"{function.__name__} does not take dask arrays: compute them first")
        return lazy(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


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
