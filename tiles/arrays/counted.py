"""Numbers of things, bytes and seconds as text."""

from __future__ import annotations

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def counted(number: int, thing: str) -> str:
    """Return a number and the name of what is counted, which is in the singular for 1.

    Examples
    --------
    >>> counted(1, "task"), counted(0, "task"), counted(2, "tile column")
    ('1 task', '0 tasks', '2 tile columns')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def in_bytes(number: int) -> str:
    """Return a number of bytes as text, to three digits.

    Examples
    --------
    >>> in_bytes(0), in_bytes(999), in_bytes(163_842), in_bytes(999_999), in_bytes(5 * 10**10)
    ('0 bytes', '999 bytes', '164 kB', '1 MB', '50 GB')
    """
    size, units = float(number), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def format_seconds(value: float) -> str:
    """Format a time with its unit, to three digits.

    Examples
    --------
    >>> format_seconds(0.00123), format_seconds(2.5e9), format_seconds(0.0)
    ('1.23 ms', '2.5 Gs', '0 s')
    """
    scale, prefix = next((p for p in _PREFIXES if value >= p[0]), _PREFIXES[-1])
    return f"{value / scale:.3g} {prefix}s" if value else "0 s"
