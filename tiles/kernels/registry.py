"""Registry of the functions that implement kernels, by device kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from hetero_la.tiles.kernels.device import DeviceKind
from hetero_la.tiles.kernels.spec import SPECS

_IMPLEMENTATIONS: dict[tuple[DeviceKind, str], Callable[..., None]] = {}
_F = TypeVar("_F", bound=Callable[..., None])


def implements(name: str, kind: DeviceKind, **fixed: Any) -> Callable[[_F], _F]:
    """Register a function, with `fixed` arguments, as kernel `name` of a device kind."""
    if name not in SPECS:
        raise ValueError(f"unknown kernel {name!r}; known are {sorted(SPECS)}")

    def register(function: _F) -> _F:
        _IMPLEMENTATIONS[kind, name] = functools.partial(function, **fixed)
        return function

    return register


def implementation(name: str, kind: DeviceKind) -> Callable[..., Any]:
    """Return the function that implements kernel `name` on devices of `kind`."""
    return _IMPLEMENTATIONS[kind, name]
