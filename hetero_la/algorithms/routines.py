"""All routines by name."""

from __future__ import annotations

from hetero_la.algorithms import cholesky, lu, qr

#: What `plan` takes as its routine.
ROUTINES = {**lu.ROUTINES, **cholesky.ROUTINES, **qr.ROUTINES}


def panel_kernel(routine: str) -> str:
    """The kernel that factors a routine's panels.

    Examples
    --------
    >>> panel_kernel("solve"), panel_kernel("lstsq")
    ('getrf', 'geqrf')
    """
    ((kind, _), *_) = ROUTINES[routine].step.panel(1, 1)
    return kind
