"""Table of all routines."""

from __future__ import annotations

from hetero_la.algorithms import cholesky, lu, qr

#: Routines by name, as `plan` takes them.
ROUTINES = {**lu.ROUTINES, **cholesky.ROUTINES, **qr.ROUTINES}
