"""Table of all routines."""

from __future__ import annotations

from hetero_la.algorithms import cholesky, lu, lu_nopivot, qr

#: Routines by name, as `plan` takes them.
ROUTINES = {**lu.ROUTINES, **lu_nopivot.ROUTINES, **cholesky.ROUTINES, **qr.ROUTINES}
