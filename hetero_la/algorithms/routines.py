"""All routines by name."""

from __future__ import annotations

from hetero_la.algorithms import cholesky, lu, qr

#: What `plan` takes as its routine.
ROUTINES = {**lu.ROUTINES, **cholesky.ROUTINES, **qr.ROUTINES}
