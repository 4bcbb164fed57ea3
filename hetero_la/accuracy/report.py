"""The report of what a result is worth: errors, condition, and how it was computed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from hetero_la.accuracy.histogram import Histogram, draw_histograms
from hetero_la.execution.report import MixedOutcome, Report, Timing
from hetero_la.pictures.suffix import drawing_for, write_picture
from hetero_la.planning.plan import Plan
from hetero_la.tiles.arrays.counted import counted, in_seconds, in_units
from hetero_la.tiles.arrays.displayed import as_html, one_line


@dataclass(frozen=True, repr=False)
class AccuracyReport:
    """What a solution, or factors, are worth; a field is None where it does not apply.

    Attributes
    ----------
    title : str
        What was computed.
    precision : str
        The dtype in which.
    refinement_steps : int or None
        Steps of iterative refinement that X has had.
    backward_error : float or None
        Normwise: the largest ``||b - A x||_1 / (||A||_1 ||x||_1 + ||b||_1)`` of a column; of least
        squares an upper bound of it, Stewart's, in the Frobenius norm of A.
    componentwise_error : float or None
        Componentwise backward error: the largest ``|b - A x|_i / (|A| |x| + |b|)_i``.
    forward_error : float or None
        Estimated bound of ``max |x - x*| / max |x|``, as ``xGERFS`` computes it; of least squares
        that of LAPACK's Users' Guide, in the 2-norm.
    judged : int or None
        Right-hand sides that these errors are of: eight, evenly apart, if there are more.
    rcond : float or None
        Reciprocal condition number, estimated in the 1-norm as by ``xGECON``, ``xPOCON`` and
        ``xTRCON``; of least squares in the 2-norm, where singular values are computed.
    factorization_error : float or None
        ``||A - F||_F / ||A||_F`` for the product F of the factors, estimated.
    growth : float or None
        Growth factor of LU: ``max |U| / max |A|``; without pivoting times ``max |L|``.
    orthogonality : float or None
        ``||Q^H Q - I||_F``, estimated.
    rank : int or None
        Rank seen: of R's diagonal, or by singular values.
    inverses, substitutions : int or None
        Diagonal tiles that were inverted for triangular solves by multiplication, and how many of
        these inverses were given up for substitution.
    panels : mapping of str to int, or None
        How many panels of QR were factored by which method.
    joules : mapping of str to float, or None
        Energy of each device whose counter can be read, during the call; None if nobody measured.
    seconds : float or None
        Wall time of the call, without these estimates, and without the copies of NumPy arrays that
        a GPU has solved for, which are in `timing`; of factors, that of their factorization.
    estimate_seconds : float
        Wall time of these estimates.
    pivots, errors : Histogram or None
        Distribution of the pivots' moduli, and of the componentwise errors.
    run : Report or None
        Plan and timing of the run; None if no tasks and no LAPACK's factorization were needed.

    Examples
    --------
    >>> import numpy as np
    >>> import hetero_la
    >>> x, report = hetero_la.solve(np.array([[2.0, 1.0], [0.0, 4.0]]), [3.0, 4.0], report=True)
    >>> report.rcond, report.backward_error, report.growth
    (0.4, 0.0, 1.0)
    >>> report.forward_error < 1e-14
    True
    >>> print(report)
    solve of a 2 x 2 float64 matrix
    ...
    growth factor                  1
    ...
    """

    title: str
    precision: str
    refinement_steps: int | None = None
    backward_error: float | None = None
    componentwise_error: float | None = None
    forward_error: float | None = None
    judged: int | None = None
    rcond: float | None = None
    factorization_error: float | None = None
    growth: float | None = None
    orthogonality: float | None = None
    rank: int | None = None
    inverses: int | None = None
    substitutions: int | None = None
    panels: Mapping[str, int] | None = None
    joules: Mapping[str, float] | None = None
    seconds: float | None = None
    estimate_seconds: float = 0.0
    pivots: Histogram | None = None
    errors: Histogram | None = None
    run: Report | None = None

    _repr_html_ = as_html

    def __repr__(self) -> str:
        shown = ("rcond", "backward_error", "forward_error", "factorization_error")
        known = [(name, getattr(self, name)) for name in shown]
        figures = [f"{name} = {value:.2g}" for name, value in known if value is not None]
        return one_line(type(self).__name__, self.title, *figures)

    def __str__(self) -> str:
        return self.as_text()

    @property
    def plan(self) -> Plan | None:
        """How the run was planned."""
        return self.run.plan if self.run else None

    @property
    def timing(self) -> Timing | None:
        """How the run went."""
        return self.run.timing if self.run else None

    @property
    def mixed(self) -> MixedOutcome | None:
        """What came of `precision="mixed"`, if that was asked for."""
        return self.run.mixed if self.run else None

    def facts(self) -> dict[str, str]:
        """Return the fields that apply, as texts by their names in words."""
        found = {label: _figure(getattr(self, name)) for label, name in _LABELS.items()}
        if self.inverses:
            found["inverses given up"] = (
                f"{self.substitutions} of {counted(self.inverses, 'diagonal tile')}"
            )
        if self.panels:
            how = (f"{count} by {method}" for method, count in self.panels.items())
            found["panels"] = ", ".join(how)
        found["precision"] = self.precision
        if self.refinement_steps is not None:
            found["precision"] += f", {counted(self.refinement_steps, 'step')} of refinement"
        if self.mixed is not None:
            found["mixed precision"] = str(self.mixed)
        if self.seconds is not None:
            spent = in_seconds(self.estimate_seconds)
            found["time"] = f"{in_seconds(self.seconds)}, and {spent} for these estimates"
        if self.joules is not None:
            used = (f"{name} {in_units(joules, 'J')}" for name, joules in self.joules.items())
            found["energy"] = ", ".join(used) or "not readable"
        return {label: text for label, text in found.items() if text}

    def as_text(self) -> str:
        """Return a table of two columns below the title."""
        facts = self.facts()
        width = max(map(len, facts))
        return "\n".join([self.title, *(f"{name:<{width}}  {facts[name]}" for name in facts)])

    def as_dict(self) -> dict[str, object]:
        """Return `mixed` and all fields but the plan and the timing, in types that JSON has.

        NaN and infinity, which JSON does not have, become None.

        Examples
        --------
        >>> import hetero_la
        >>> x, report = hetero_la.solve([[2.0, 1.0], [0.0, 4.0]], [3.0, 4.0], report=True)
        >>> found = report.as_dict()
        >>> found["rcond"], found["growth"], found["orthogonality"]
        (0.4, 1.0, None)
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["run"]
        values["mixed"] = None if self.mixed is None else asdict(self.mixed)
        return {name: _plain(value) for name, value in values.items()}

    def to_json(self, indent: int | None = 2) -> str:
        """Return `as_dict` as JSON.

        Parameters
        ----------
        indent : int or None, optional
            Spaces by which each level is indented; None makes one line.

        Examples
        --------
        >>> import json
        >>> import hetero_la
        >>> x, report = hetero_la.solve([[2.0, 1.0], [0.0, 4.0]], [3.0, 4.0], report=True)
        >>> json.loads(report.to_json())["rcond"]
        0.4
        """
        return json.dumps(self.as_dict(), indent=indent, allow_nan=False)

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the distributions of pivots and componentwise errors.

        Parameters
        ----------
        path : path
            A file whose name ends in .svg, or .png, which needs Matplotlib.

        Raises
        ------
        ValueError
            If the suffix is another, or there is nothing to draw.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import hetero_la
        >>> x, report = hetero_la.solve([[2.0, 1.0], [0.0, 4.0]], [3.0, 4.0], report=True)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "report.svg"
        ...     report.draw(path)
        ...     path.read_text().startswith("<svg")
        True
        """
        draw = drawing_for(path, {".svg": draw_histograms, ".png": draw_histograms}, "write")
        write_picture(path, draw(self.title, self.distributions()))

    def distributions(self) -> Sequence[tuple[str, Histogram]]:
        """Return the distributions that there are, with their titles."""
        both = (("moduli of the pivots", self.pivots), ("componentwise errors", self.errors))
        return [(label, found) for label, found in both if found is not None]


_LABELS = {
    "backward error, normwise": "backward_error",
    "backward error, componentwise": "componentwise_error",
    "forward error bound": "forward_error",
    "error of the factorization": "factorization_error",
    "reciprocal condition number": "rcond",
    "growth factor": "growth",
    "orthogonality of Q": "orthogonality",
    "rank": "rank",
    "right-hand sides examined": "judged",
}


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
