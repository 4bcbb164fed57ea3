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
