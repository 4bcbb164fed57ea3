"""Dispatch of calls with Dask arrays to the functions of `hetero_la.dask_arrays`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_loaders: list[Callable[[], ModuleType]] = []


def provide_lazy_functions(load: Callable[[], ModuleType]) -> None:
    """Register `load`, which imports the module of lazy functions when one is first needed."""
    _loaders[:] = [load]


def lazy_function(name: str) -> Callable[..., Any]:
    """Return the function of this name for Dask arrays; raise TypeError if there is none."""
    found = getattr(_loaders[0](), name, None)
    if found is None:
        raise TypeError(f"{name} does not take dask arrays: compute them first")
    return found


def is_dask_array(value: Any) -> bool:
    """Return whether `value` is a Dask array."""
    module = sys.modules.get("dask.array")  # imported, if there is a Dask array
    return module is not None and isinstance(value, module.Array)
