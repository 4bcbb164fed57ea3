"""
A forecast with uncertainty
===========================

Carbon dioxide at Mauna Loa, forecast by a Gaussian process: Cholesky on a real record.

The record (2,225 weekly means, 1958 to 2001) is modelled as a Gaussian process whose covariance
is the sum of a smooth trend, a yearly cycle that may change its shape, medium-term
irregularities, and correlated and white noise [1].  With K = U^T U the covariance of the weeks
that are known, d their deviations from the mean, and k the covariances with other weeks::

    log p(d) = -1/2 d^T K^-1 d - 1/2 log det K - n/2 log 2 pi     log marginal likelihood
    mean     = k K^-1 d                                           forecast
    variance = prior variance - diag(k K^-1 k^T)                  its uncertainty

so that one factorization gives all three.  The strength of the white noise is chosen by the
likelihood, one factorization for each candidate; the other parameters are those of [1], which
were found for monthly means.  The model sees the years before 1998, and forecasts the rest.

The script fails unless likelihood and forecast are those of SciPy, the error of the forecast is
below 1 ppm, and four weeks in five lie within two standard deviations of it. ::

    python examples/06_gaussian_process.py

[1] C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, section
5.4.3.
"""

# %%
# The model
# ---------

from pathlib import Path

import numpy as np
import scipy.linalg
from matplotlib import pyplot
from numpy.typing import NDArray

import hetero_la

Array = NDArray[np.float64]

# A notebook has no file, and runs in the folder of the examples.
DATA = (Path(__file__).parent if "__file__" in globals() else Path()) / "data"
FROM_YEAR = 1998  # where the forecast begins
NOISES = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)  # ppm, of one weekly mean


def covariance(t: Array, u: Array) -> Array:
    """Return the covariance between the weeks t and u, in years, without white noise; in ppm^2."""
    r = t[:, None] - u
    trend = 66**2 * np.exp(-0.5 * (r / 67) ** 2)
    cycle = 2.4**2 * np.exp(-0.5 * (r / 90) ** 2 - 2 * (np.sin(np.pi * r) / 1.3) ** 2)
    irregular = 0.66**2 * (1 + (r / 1.2) ** 2 / (2 * 0.78)) ** -0.78
    noise = 0.18**2 * np.exp(-0.5 * (r * 12 / 1.6) ** 2)
    return trend + cycle + irregular + noise


def log_likelihood(d: Array, alpha: Array, logdet: float) -> float:
    """Return the log marginal likelihood of the deviations d, with alpha = K^-1 d."""
    return float(-0.5 * (d @ alpha + logdet + len(d) * np.log(2 * np.pi)))


record = np.loadtxt(DATA / "co2.csv", delimiter=",", dtype=[("date", "M8[D]"), ("ppm", float)])
year, ppm = 1970 + record["date"].astype(float) / 365.2425, record["ppm"]
known = year < FROM_YEAR
t, later = year[known], year[~known]
level = ppm[known].mean()
d = ppm[known] - level
print(f"{len(t)} weeks known, {len(later)} to forecast, from {FROM_YEAR:g}")

# %%
# The likelihood chooses the noise
# --------------------------------

quiet, white = covariance(t, t), np.eye(len(t))
likelihood, noise = -np.inf, 0.0
for candidate in NOISES:
    tried = hetero_la.cho_factor(quiet + candidate**2 * white, overwrite_a=True)
    found = log_likelihood(d, tried.solve(d), tried.logdet())
    print(f"white noise {candidate:4.2f} ppm: log marginal likelihood {found:9.2f}")
    if found > likelihood:
        likelihood, noise, factors = found, candidate, tried

# %%
# The forecast
# ------------

k, prior = covariance(later, t), covariance(t[:1], t[:1])[0, 0] + noise**2
mean = level + k @ factors.solve(d)
deviation = np.sqrt(prior - np.einsum("ij,ji->i", k, factors.solve(k.T)))

figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
band = mean - 2 * deviation, mean + 2 * deviation
axes.fill_between(later, *band, color="tab:blue", alpha=0.25, lw=0, label="two standard deviations")
axes.plot(later, mean, color="tab:blue", label="forecast")
axes.plot(year, ppm, ".", color="black", ms=2, label="measured")
axes.set(xlabel="year", ylabel="CO$_2$ (ppm)", title="Mauna Loa", xlim=(later[0] - 12, later[-1]))
axes.set_ylim(ppm[year > later[0] - 12].min() - 2, (mean + 2 * deviation).max() + 2)
axes.legend(loc="upper left")

error = ppm[~known] - mean
rmse, inside = np.sqrt(np.mean(error**2)), np.mean(abs(error) < 2 * deviation)
print(f"root mean square error of the forecast: {rmse:.2f} ppm; its own standard deviation grows "
      f"from {deviation[0]:.2f} to {deviation[-1]:.2f} ppm, and {inside:.0%} of the weeks lie "
      "within two of them")  # fmt: skip

# %%
# The same by SciPy
# -----------------
# Likelihood, forecast and its standard deviation, by substitution with L alone.

L = scipy.linalg.cholesky(quiet + noise**2 * white, lower=True)
z, w = (scipy.linalg.solve_triangular(L, b, lower=True) for b in (d, k.T))
peer = (
    log_likelihood(z, z, 2 * np.log(np.diag(L)).sum()),
    w.T @ z,
    np.sqrt(prior - np.einsum("ij,ij->j", w, w)),
)
pairs = zip((likelihood, mean - level, deviation), peer, strict=True)
apart = [float(np.abs(np.subtract(x, y)).max() / np.abs(y).max()) for x, y in pairs]
print("relative differences from SciPy: likelihood {:.1e}, forecast {:.1e}, deviation {:.1e}"
      .format(*apart))  # fmt: skip

assert max(apart) < 1e-8
assert rmse < 1
assert inside > 0.8
print("the forecast agrees with the record, and with SciPy")
