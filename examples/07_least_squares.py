"""
Linear regression with error bars
=================================

Regression by QR, on certified and on measured data.

With A = Q R the least-squares solution is b = R^-1 Q^T y, and R also tells how certain it is:
with s^2 = ``|y - A b|^2 / (m - n)``, a combination c b has the standard deviation ``s |c R^-1|``.

Filip [1] is a polynomial of degree 10 in raw powers of x, of condition number 2e15; NIST
certifies its coefficients and their standard deviations to 15 digits.  With columns scaled to
unit length the condition number is 5e9.  That leaves QR 7 or 8 digits in double precision, and
the normal equations A^T A b = A^T y, where it counts twice, none.

Mauna Loa [2] is the carbon dioxide in 2,225 weeks: cubic splines with a knot every year for
the trend, and four harmonics of the year, whose strengths are splines with a knot every four years.
The fit gives the growth in each decade, and the swing from October to May, when respiration exceeds
photosynthesis.  (It assumes that the errors of neighbouring weeks are independent, which they are
not quite: the true standard deviations are a little larger.)

The script fails unless 6 digits of Filip are right, and the results on the record, found again by
SciPy from singular values, are the same. ::

    python examples/07_least_squares.py

[1] NIST, Statistical Reference Datasets, linear regression.  [2] The head of data/co2.csv names
the source.
"""

# %%
# Estimates and their standard deviations
# ---------------------------------------

from pathlib import Path

import numpy as np
import scipy.linalg
from matplotlib import pyplot
from numpy.typing import NDArray
from scipy.interpolate import BSpline

import hetero_la

Array = NDArray[np.float64]

# A notebook has no file, and runs in the folder of the examples.
DATA = (Path(__file__).parent if "__file__" in globals() else Path()) / "data"
DECADES = np.array([1960.0, 1970.0, 1980.0, 1990.0])
MAY, OCTOBER = 0.37, 0.75  # parts of a year: when there is most, and when least


def regression(A: Array, y: Array, c: Array) -> tuple[Array, Array]:
    """Estimate the combinations c b by least squares, with their standard deviations."""
    b, residue, _, _ = hetero_la.lstsq(A, y)
    (R,) = hetero_la.qr(A, mode="r")
    rows = scipy.linalg.solve_triangular(R[: len(b)], c.T, trans="T")
    return c @ b, np.sqrt(residue / (len(y) - len(b))) * np.linalg.norm(rows, axis=0)


def digits(found: Array, certified: Array) -> float:
    """Count the right digits of the worst number."""
    return max(0.0, float(-np.log10(np.abs(found / certified - 1).max())))


# %%
# Filip
# -----

y, x = np.loadtxt(DATA / "filip.csv", delimiter=",").T
certified = np.loadtxt(DATA / "filip_certified.csv", delimiter=",").T
A = np.vander(x, 11, increasing=True)
lengths = np.linalg.norm(A, axis=0)
print(f"{A.shape[0]} x {A.shape[1]}: condition number {np.linalg.cond(A):.1e}, "
      f"{np.linalg.cond(A / lengths):.1e} with columns of unit length")  # fmt: skip
A /= lengths
found = regression(A, y, np.diag(1 / lengths))
right = [digits(*pair) for pair in zip(found, certified, strict=True)]
print("right digits of coefficients and deviations: {:.1f} and {:.1f}".format(*right))
b = scipy.linalg.lstsq(A, y)[0]
print(f"SciPy's lstsq, from singular values: {digits(b / lengths, certified[0]):.1f}")
b = np.linalg.solve(A.T @ A, A.T @ y)
print(f"normal equations: {digits(b / lengths, certified[0]):.1f}")
assert min(right) > 6

# %%
# Mauna Loa
# ---------


def splines(t: Array, step: int) -> Array:
    """Evaluate cubic B-splines on 1958 to 2002, with a knot every `step` years."""
    knots = np.r_[[1958.0] * 3, 1958 : 2002 + step : step, [2002.0] * 3]
    return BSpline(knots, np.eye(len(knots) - 4), 3)(t)


def terms(trend: Array, season: Array) -> Array:
    """Build a row for each pair of times: for the trend, and for the part that is yearly."""
    waves = [wave(2 * np.pi * h * season) for h in (1, 2, 3, 4) for wave in (np.cos, np.sin)]
    slow = splines(season, 4)
    return np.hstack([splines(trend, 1), *(wave[:, None] * slow for wave in waves)])


record = np.loadtxt(DATA / "co2.csv", delimiter=",", dtype=[("date", "M8[D]"), ("ppm", float)])
year, y = 1970 + record["date"].astype(float) / 365.2425, record["ppm"]
A = terms(year, year)
growth = (terms(DECADES + 10, DECADES) - terms(DECADES, DECADES)) / 10
years = DECADES[:, None] + np.arange(10)
middle = np.full(years.size, 1980.0)
swing = terms(middle, years.ravel() + MAY) - terms(middle, years.ravel() + OCTOBER)
c = np.vstack([growth, swing.reshape(*years.shape, -1).mean(axis=1)])
found = regression(A, y, c)
print(f"{A.shape[0]} x {A.shape[1]}: condition number {np.linalg.cond(A):.1e}")
print("decade   growth (ppm a year)   swing (ppm)")
(g, w), (dg, dw) = (half.reshape(2, -1) for half in found)
for row in zip(DECADES, g, dg, w, dw, strict=True):
    print("{:.0f}s     {:.3f} +- {:.3f}       {:.2f} +- {:.2f}".format(*row))

# %%
# The growth is faster than it was, and the swing is larger.

figure, panels = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for axes, values, errors, title in (
    (panels[0], g, dg, "growth (ppm a year)"), (panels[1], w, dw, "swing (ppm)")
):  # fmt: skip
    axes.errorbar(DECADES + 5, values, 2 * errors, fmt="o", capsize=4)
    axes.set(title=title, xlabel="year")

# %%
# The same by SciPy
# -----------------

inverse, b = scipy.linalg.pinv(A), scipy.linalg.lstsq(A, y)[0]
s = np.linalg.norm(y - A @ b) / (len(y) - len(b)) ** 0.5
peer = c @ b, s * np.linalg.norm(c @ inverse, axis=1)
right = [digits(*pair) for pair in zip(found, peer, strict=True)]
print("digits that agree with SciPy: {:.1f} and {:.1f}".format(*right))
assert min(right) > 10
print("certified values and SciPy agree")
