"""Table of all routines."""

from __future__ import annotations

from hetero_la.algorithms import cholesky, lu, lu_nopivot, qr

#: Routines by name, as `plan` takes them.
ROUTINES = {**lu.ROUTINES, **lu_nopivot.ROUTINES, **cholesky.ROUTINES, **qr.ROUTINES}


def title_of(routine: str) -> str:
    """Return what texts and pictures call a routine.

    Examples
    --------
    >>> title_of("lu"), title_of("explicit_q")
    ('lu', 'qr with Q')
    """
    return ROUTINES[routine].called or routine


#: Words in the names of routines that headings write in another way.
_WORDS = {"lu": "LU", "qr": "QR", "lstsq": "least squares"}


def heading_of(routine: str) -> str:
    """Return what the heading of a picture calls a routine.

    Examples
    --------
    >>> heading_of("lu"), heading_of("solve_positive"), heading_of("lstsq")
    ('LU', 'Solve by Cholesky', 'Least squares')
    """
    words = title_of(routine).replace("_", " ").split()
    text = " ".join(_WORDS.get(word, word) for word in words)
    return text[0].upper() + text[1:]
