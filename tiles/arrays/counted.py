"""Numbers of things, and quantities in units, as people read them."""

from __future__ import annotations

import math
from typing import Any

#: Prefixes of units, for powers of 1000 from the first on.
_PREFIXES, _LEAST = ("n", "µ", "m", "", "k", "M", "G", "T", "P", "E"), -3


def counted(number: int, thing: str) -> str:
    """Return a number and the name of what is counted, which is in the singular for 1.

    Examples
    --------
    >>> counted(1, "task"), counted(0, "task"), counted(2, "tile column")
    ('1 task', '0 tasks', '2 tile columns')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def a_matrix(m: int, n: int, of: Any = "") -> str:
    """Return a matrix of that shape and dtype, with its article.

    Examples
    --------
    >>> a_matrix(2, 3), a_matrix(80, 3, "float64"), a_matrix(1100, 2), a_matrix(11000, 2)
    ('a 2 x 3 matrix', 'an 80 x 3 float64 matrix', 'a 1100 x 2 matrix', 'an 11000 x 2 matrix')
    """
    read = f"{m:,}".partition(",")[0]  # as eleven, or eleven thousand
    vowel = read.startswith("8") or read in ("11", "18")
    return f"{'an' if vowel else 'a'} {m} x {n} {f'{of} ' if of else ''}matrix"


def in_units(value: float, unit: str) -> str:
    """Return a quantity to three digits, with the prefix of its unit that keeps it below 1000.

    Examples
    --------
    >>> in_units(0.0335, "s"), in_units(45.2e9, "flop/s"), in_units(0.9996e9, "B/s")
    ('33.5 ms', '45.2 Gflop/s', '1 GB/s')
    >>> in_units(0, "s"), in_units(float("inf"), "B/s")
    ('0 s', 'inf B/s')
    """
    rounded = float(f"{value:.3g}")
    if not rounded or not math.isfinite(rounded):
        return f"{rounded:g} {unit}"
    power = math.floor(math.log10(abs(rounded)) / 3 + 1e-9)
    power = min(max(power, _LEAST), _LEAST + len(_PREFIXES) - 1)
    return f"{rounded / 1000.0**power:.3g} {_PREFIXES[power - _LEAST]}{unit}"


def in_seconds(value: float) -> str:
    """Return a time to three digits; there are no kiloseconds.

    Examples
    --------
    >>> in_seconds(1.234e-5), in_seconds(0.0), in_seconds(2.5), in_seconds(12345.6)
    ('12.3 µs', '0 s', '2.5 s', '12346 s')
    """
    return in_units(value, "s") if value < 999.5 else f"{value:.0f} s"


def in_bytes(number: float) -> str:
    """Return a number of bytes as text, to three digits.

    Examples
    --------
    >>> in_bytes(0), in_bytes(999), in_bytes(163_842), in_bytes(999_999), in_bytes(5 * 10**10)
    ('0 bytes', '999 bytes', '164 kB', '1 MB', '50 GB')
    """
    return counted(int(number), "byte") if number < 999.5 else in_units(number, "B")
