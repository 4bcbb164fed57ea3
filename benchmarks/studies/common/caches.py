"""Operands that no cache holds: copies in turn, together larger than the last cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from hetero_la.studies.common.cuda import attribute
from hetero_la.studies.common.timing import Call

_CPUS = Path("/sys/devices/system/cpu")
#: Bytes of a CPU's last caches, where the system does not say.
_UNKNOWN = 2**28


def last_caches(place: str) -> int:
    """Return the bytes of the last caches of the current GPU, or of the CPU, ``"CPU"``."""
    return _of_cpus() if place == "CPU" else attribute("L2CacheSize")


def _of_cpus(cpus: Path = _CPUS) -> int:
    """Return the bytes of the caches that the system numbers highest, of all cores together."""
    sizes: dict[tuple[int, str], int] = {}
    for size in cpus.glob("cpu[0-9]*/cache/index*/size"):
        level, shared_by = (size.with_name(of).read_text() for of in ("level", "shared_cpu_list"))
        sizes[int(level), shared_by] = 1024 * int(size.read_text().rstrip("K\n"))
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or _UNKNOWN


def copies_beyond(cache: int, times: float, nbytes: int) -> int:
    """Return how many copies of operands are together so many times as large as a cache.

    Examples
    --------
    >>> copies_beyond(50_000_000, 3, 1_000_000), copies_beyond(50_000_000, 3, 10**9)
    (150, 1)
    """
    return max(1, -(-int(times * cache) // nbytes))


def in_rotation(calls: Sequence[Call]) -> Call:
    """Return a call that makes one call after the other, and begins again after the last.

    Examples
    --------
    >>> call = in_rotation([lambda: "a", lambda: "b"])
    >>> call(), call(), call()
    ('a', 'b', 'a')
    """
    turn = itertools.cycle(calls)
    return lambda: next(turn)()
