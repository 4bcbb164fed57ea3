"""Programs that call SciPy or NumPy, as they are and within `patch_scipy(numpy=True)`, in turns.

    python benchmarks/scipy_callers.py 4000 --repeats 7

scikit-learn's Gaussian process (with a fixed kernel) and ridge regression, statsmodels' generalized
and ordinary least squares: least and median seconds.  Where there is a GPU, ours may use it.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import Ridge
from statsmodels.regression.linear_model import GLS, OLS

import hetero_la

AGREE = 1e-6


def programs(n: int) -> dict[str, Callable[[], Any]]:
    """What is timed, for n samples; each returns what it has fitted."""
    rng = np.random.default_rng(0)
    points, wide = rng.uniform(0, 5, (n, 3)), rng.standard_normal((n, n))
    y = rng.standard_normal(n)
    distance = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    covariance = np.exp(-distance / 10.0)
    kernel = RBF(1.0) + WhiteKernel(0.1)
    return {
        "GaussianProcessRegressor": lambda: (
            GaussianProcessRegressor(kernel, optimizer=None).fit(points, y).alpha_
        ),
        "Ridge, n features": lambda: Ridge(solver="cholesky").fit(wide, y).coef_,
        "GLS, 20 regressors": lambda: GLS(y, wide[:, :20], sigma=covariance).fit().params,
        "OLS, n/20 regressors": lambda: OLS(y, wide[:, : n // 20]).fit().params,
        "OLS, n/20, by QR": lambda: OLS(y, wide[:, : n // 20]).fit(method="qr").params,
        "OLS, n/4 regressors": lambda: OLS(y, wide[:, : n // 4]).fit().params,
    }


def seconds(run: Callable[[], Any], repeats: int) -> tuple[list[float], list[float]]:
    """Time a program as it is, and within `patch_scipy`; they must agree."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(repeats + 1):  # the first loads what is needed
        found = []
        places = contextlib.nullcontext, partial(hetero_la.patch_scipy, numpy=True)
        for taken, place in zip(times, places, strict=True):
            with place():
                start = time.perf_counter()
                found.append(run())
                taken.append(time.perf_counter() - start)
        error = np.abs(found[0] - found[1]).max() / np.abs(found[0]).max()
        assert error < AGREE, f"results differ by {error:.1e}"
    return times[0][1:], times[1][1:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=4000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(f"{'seconds, n = ' + str(args.n):<28}{'SciPy':>16}{'hetero_la':>16}{'ratio':>16}")
    print(" " * 28 + f"{'least':>8}{'median':>8}" * 3)
    for name, run in programs(args.n).items():
        theirs, ours = seconds(run, args.repeats)
        least, median = zip(*((min(t), statistics.median(t)) for t in (theirs, ours)), strict=True)
        row = f"{name:<28}{least[0]:>8.3f}{median[0]:>8.3f}{least[1]:>8.3f}{median[1]:>8.3f}"
        print(f"{row}{least[1] / least[0]:>8.2f}{median[1] / median[0]:>8.2f}", flush=True)
