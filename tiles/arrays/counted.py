"""Numbers of things, and of bytes, as text."""

from __future__ import annotations


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
