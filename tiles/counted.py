"""Numbers of things, as texts say them."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """A number with what there are so many of, in the singular for one.

    Examples
    --------
    >>> counted(1, "task"), counted(0, "task"), counted(2, "tile column")
    ('1 task', '0 tasks', '2 tile columns')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"
