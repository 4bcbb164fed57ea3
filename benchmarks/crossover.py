"""Every function at every size, contenders in turns: who is fastest where, and from which order.

    python benchmarks/crossover.py --json here.json --plot here.svg          # this machine's CPU
    python benchmarks/crossover.py --gpu --orders 1024 2048 4096             # and one GPU
    python benchmarks/crossover.py --stack 1000 --orders 32 64 128 256       # stacks of matrices
    python benchmarks/crossover.py --stack 1000 --gpu --orders 32 64         # and on one GPU
    python benchmarks/crossover.py --read here.json --plot here.svg          # draw it again

NumPy in and out: SciPy on all cores, CuPy and torch with both copies, and hetero_la.  CuPy arrays
in and out: CuPy, torch, and hetero_la.  Stacks: a loop over SciPy's function that keeps the
results, and hetero_la; on a GPU CuPy's batched function, or a loop over that for one matrix, and
hetero_la.  A contender that takes more than a second
and five times as long as the fastest at one order, or cannot do it, is left out at larger ones.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import hetero_la

ORDERS = [2**k for k in range(6, 14)]
NRHS, SHORT, LONG, HOPELESS = 16, 0.02, 1.0, 5.0

Call = Callable[[], Any]
#: Function -> how each library calls it: `m` the matrix, `b` the right-hand sides.
NUMPY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "lu_factor": lambda la, m, b: la.lu_factor(m),
    "cho_factor": lambda la, m, b: la.cho_factor(m, lower=True),
    "qr": lambda la, m, b: la.qr(m, mode="economic"),
    "solve": lambda la, m, b: la.solve(m, b, **({} if la is hetero_la else {"assume_a": "gen"})),
    "solve positive": lambda la, m, b: la.solve(m, b, assume_a="pos"),
    "lstsq": lambda la, m, b: la.lstsq(m, b),
    "lstsq, full rank": lambda la, m, b: la.lstsq(
        m, b, lapack_driver="gels" if la is hetero_la else "gelsy"
    ),
    "inv": lambda la, m, b: la.inv(m),
}
#: More functions of stacks; those of factors get them as LAPACK leaves them.
STACKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "cholesky": lambda la, m, b: la.cholesky(m, lower=True),
    "qr r": lambda la, m, b: la.qr(m, mode="r"),
    "qr raw": lambda la, m, b: la.qr(m, mode="raw"),
    "lu": lambda la, m, b: la.lu(m),
    "det": lambda la, m, b: la.det(m),
    "slogdet": lambda la, m, b: (np.linalg if la is scipy.linalg else la).slogdet(m),
    "lu_solve": lambda la, m, b: la.lu_solve((m, pivots(m)), b),
    "cho_solve": lambda la, m, b: la.cho_solve((m, True), b),
    "solve symmetric": lambda la, m, b: la.solve(m, b, assume_a="sym"),
    "solve upper": lambda la, m, b: la.solve(m, b, assume_a="upper triangular"),
    "solve tridiagonal": lambda la, m, b: la.solve(m, b, assume_a="tridiagonal"),
    "solve banded": lambda la, m, b: la.solve(m, b, assume_a="banded"),
    "solve diagonal": lambda la, m, b: la.solve(m, b, assume_a="diagonal"),
}
POSITIVE = ("cho_factor", "solve positive", "cholesky", "cho_solve")
#: Functions whose matrices need a large diagonal, and their diagonals beside it.
DOMINANT = {"solve upper": None, "solve tridiagonal": 1, "solve banded": 3, "solve diagonal": 0}


def pivots(m: Any) -> Any:
    """Interchanges of no rows, for each matrix."""
    xp = np if isinstance(m, np.ndarray) else importlib.import_module("cupy")
    return xp.broadcast_to(xp.arange(m.shape[-1], dtype=np.int32), m.shape[:-1])


def cupy_calls() -> dict[str, Callable[[Any, Any], Any]]:
    """CuPy's functions, on its arrays."""
    import cupy
    import cupyx.scipy.linalg

    def solve_positive(m: Any, b: Any) -> Any:
        lower = cupy.linalg.cholesky(m)
        y = cupyx.scipy.linalg.solve_triangular(lower, b, lower=True)
        return cupyx.scipy.linalg.solve_triangular(lower, y, lower=True, trans="C")

    return {
        "lu_factor": lambda m, b: cupyx.scipy.linalg.lu_factor(m),
        "cho_factor": lambda m, b: cupy.linalg.cholesky(m),
        "qr": lambda m, b: cupy.linalg.qr(m, mode="reduced"),
        "solve": lambda m, b: cupy.linalg.solve(m, b),
        "solve positive": solve_positive,
        "lstsq": lambda m, b: cupy.linalg.lstsq(m, b, rcond=None),
        "lstsq, full rank": lambda m, b: cupy.linalg.lstsq(m, b, rcond=None),
        "inv": lambda m, b: cupy.linalg.inv(m),
    }


def cupy_stack_calls() -> dict[str, Callable[[Any, Any], Any]]:
    """CuPy's functions on stacks; positive definite systems are solved by LU, too."""
    import cupy

    one = cupy_calls()
    batched: dict[str, Callable[[Any, Any], Any]] = {
        "solve": lambda m, b: cupy.linalg.solve(m, b),
        "solve positive": lambda m, b: cupy.linalg.solve(m, b),
        "inv": lambda m, b: cupy.linalg.inv(m),
        "cho_factor": lambda m, b: cupy.linalg.cholesky(m),
        "cholesky": lambda m, b: cupy.linalg.cholesky(m),
        "det": lambda m, b: cupy.linalg.det(m),
        "slogdet": lambda m, b: cupy.linalg.slogdet(m),
    }
    loops = {
        name: lambda m, b, name=name: [one[name](*pair) for pair in zip(m, b, strict=True)]
        for name in ("lu_factor", "qr", "lstsq")
    }
    return batched | loops


def torch_calls() -> dict[str, Callable[[Any, Any], Any]]:
    """torch's functions, on its tensors; its `lstsq` on a GPU finds neither rank nor values."""
    import torch

    la = torch.linalg
    return {
        "lu_factor": lambda m, b: la.lu_factor(m),
        "cho_factor": lambda m, b: la.cholesky(m),
        "qr": lambda m, b: la.qr(m),
        "solve": lambda m, b: la.solve(m, b),
        "solve positive": lambda m, b: torch.cholesky_solve(b, la.cholesky(m)),
        "lstsq, full rank": lambda m, b: la.lstsq(m, b),
        "inv": lambda m, b: la.inv(m),
    }


def problem(function: str, n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """A random matrix that suits a function, and right-hand sides."""
    rng = np.random.default_rng(n)
    rows = 2 * n if function.startswith("lstsq") else n
    m = np.asfortranarray(rng.standard_normal((rows, n)), dtype)
    if function in POSITIVE:
        m = np.asfortranarray((m + m.T) / 2 + 2 * n * np.eye(n), dtype)
    if function in DOMINANT:
        m = np.asfortranarray(m + 2 * n * np.eye(n), dtype)
        if (width := DOMINANT[function]) is not None:
            m = np.asfortranarray(np.triu(np.tril(m, width), -width))
    return m, np.asfortranarray(rng.standard_normal((rows, NRHS)), dtype)


def on_host(function: str, m: Any, b: Any, gpu: bool) -> dict[str, Call]:
    """Contenders with NumPy arrays in and out."""
    call = NUMPY[function]
    found: dict[str, Call] = {
        "SciPy": lambda: call(scipy.linalg, m, b), "hetero_la": lambda: call(hetero_la, m, b),
    }  # fmt: skip
    if gpu:
        import cupy

        theirs = cupy_calls()[function]

        def back(found: Any) -> Any:
            return [x.get() for x in (found if isinstance(found, tuple) else (found,))]

        found["CuPy with copies"] = lambda: back(theirs(cupy.asarray(m), cupy.asarray(b)))
    if gpu and importlib.util.find_spec("torch") and function in torch_calls():
        import torch

        tensors = torch_calls()[function]

        def cpu(found: Any) -> Any:
            return [x.cpu() for x in ([found] if isinstance(found, torch.Tensor) else found)]

        found["torch with copies"] = lambda: cpu(
            tensors(torch.from_numpy(m).cuda(), torch.from_numpy(b).cuda())
        )
    return found


def on_device_complete(run: Call) -> Call:
    """A call that returns when the GPU is done."""
    import cupy

    def timed() -> None:
        run()
        cupy.cuda.Device().synchronize()

    return timed


def on_device(function: str, m: Any, b: Any) -> dict[str, Call]:
    """Contenders with CuPy arrays in and out."""
    import cupy

    call, theirs = NUMPY[function], cupy_calls()[function]
    m, b = cupy.asarray(m, order="F"), cupy.asarray(b, order="F")
    found = {
        "CuPy": on_device_complete(lambda: theirs(m, b)),
        "hetero_la": on_device_complete(lambda: call(hetero_la, m, b)),
    }
    if importlib.util.find_spec("torch") and function in torch_calls():
        import torch

        tensors = torch_calls()[function]
        tm, tb = torch.from_dlpack(m), torch.from_dlpack(b)

        def torch_run() -> None:
            tensors(tm, tb)
            torch.cuda.synchronize()

        found["torch"] = torch_run
    return found


def of_stacks(where: str, function: str, m: Any, b: Any, count: int) -> dict[str, Call]:
    """Contenders with a stack of matrices."""
    call, scales = {**NUMPY, **STACKS}[function], np.linspace(1, 2, count)[:, None, None]
    many, right = (np.ascontiguousarray(scales * x, x.dtype) for x in (m, b))
    if where == "device":
        import cupy

        given, columns = cupy.asarray(many), cupy.asarray(right)
        found = {"hetero_la": on_device_complete(lambda: call(hetero_la, given, columns))}
        theirs = cupy_stack_calls().get(function)
        if theirs:
            found["CuPy"] = on_device_complete(lambda: theirs(given, columns))
        return found
    return {
        "SciPy": lambda: [call(scipy.linalg, *one) for one in zip(many, right, strict=True)],
        "hetero_la": lambda: call(hetero_la, many, right),
    }


def measure(contenders: dict[str, Call], series: int) -> dict[str, list[float]]:
    """Seconds of a call, by series; in each, every contender in turn."""
    calls: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    for name, run in contenders.items():
        try:
            run()
        except Exception as error:  # not enough memory, for one: that contender has no line here
            print(f"{name}: {error}")
            continue
        began = time.perf_counter()
        run()
        calls[name] = max(int(SHORT / (time.perf_counter() - began)), 1)
        seconds[name] = []
    for _ in range(series):
        for name in calls:
            began = time.perf_counter()
            for _ in range(calls[name]):
                contenders[name]()
            seconds[name].append((time.perf_counter() - began) / calls[name])
    return seconds


def rows_of(
    where: str, function: str, orders: list[int], gpu: bool, series: int, stack: int, dtype: str
) -> list[dict]:
    """Rows for one function and one kind of arrays; printed as they come."""
    rows: list[dict] = []
    hopeless: set[str] = set()
    for n in orders:
        m, b = problem(function, n, dtype)
        if stack:
            found = of_stacks(where, function, m, b, stack)
        else:
            found = on_host(function, m, b, gpu) if where == "host" else on_device(function, m, b)
        taken = measure({k: v for k, v in found.items() if k not in hopeless}, series)
        medians = {name: statistics.median(values) for name, values in taken.items()}
        best = min(medians.values())
        others = [value for name, value in medians.items() if name != "hetero_la"]
        figures = [f"{name} {1e3 * value:.3f} ms" for name, value in medians.items()]
        if others:
            least = min(min(values) for name, values in taken.items() if name != "hetero_la")
            figures.append(
                f"ours / best other {medians['hetero_la'] / min(others):.2f} (least times: "
                f"{min(taken['hetero_la']) / least:.2f})"
            )
        print(f"{where:<7}{function:<15}{n:>6}", *figures, sep="  ", flush=True)
        slow = max(HOPELESS * best, LONG)
        hopeless |= {who for who, value in medians.items() if value > slow} - {"hetero_la"}
        hopeless |= found.keys() - medians.keys()
        rows += [
            {"where": where, "function": function, "n": n, "who": name, "seconds": values}
            for name, values in taken.items()
        ]
    return rows


def draw(rows: list[dict], path: Path) -> None:
    """Draw seconds over the order, and mark where the fastest contender changes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    places = sorted({row["where"] for row in rows}, reverse=True)
    functions = list(dict.fromkeys(row["function"] for row in rows))
    figure, axes = plt.subplots(
        len(functions), len(places), squeeze=False, sharex=True, layout="constrained",
        figsize=(5 * len(places), 2.6 * len(functions)),
    )  # fmt: skip
    names = list(dict.fromkeys(row["who"] for row in rows))
    for (function, where), ax in zip(
        ((f, w) for f in functions for w in places), axes.flat, strict=True
    ):
        lines: dict[str, dict[int, float]] = {}
        for row in rows:
            if (row["function"], row["where"]) == (function, where):
                lines.setdefault(row["who"], {})[row["n"]] = statistics.median(row["seconds"])
        for name, points in lines.items():
            ax.loglog(
                points.keys(), points.values(), "o-", ms=3, color=f"C{names.index(name)}",
                label=name, lw=2.2 if name == "hetero_la" else 1.2,
            )  # fmt: skip
        orders = sorted({n for points in lines.values() for n in points})
        fastest = [min((p[n], name) for name, p in lines.items() if n in p)[1] for n in orders]
        for before, n, old, new in zip(orders, orders[1:], fastest, fastest[1:], strict=False):
            if old != new:
                ax.axvline((before * n) ** 0.5, color="0.7", lw=0.8, ls="--")
        ax.set_title(f"{function}, {'NumPy' if where == 'host' else 'CuPy'} arrays", fontsize=9)
        ax.set_ylabel("seconds", fontsize=8)
        ax.set_xscale("log", base=2)
        ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("order n", fontsize=8)
    handles = dict(
        pair for ax in axes.flat for pair in zip(*ax.get_legend_handles_labels()[::-1], strict=True)
    )
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=4, fontsize=8)
    figure.savefig(path)


def main() -> None:
    """Measure or read, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--functions", nargs="+", choices=[*NUMPY, *STACKS])
    parser.add_argument("--gpu", action="store_true", help="with one GPU beside, and on it")
    parser.add_argument("--stack", type=int, default=0, help="as many matrices in each call")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float64")
    parser.add_argument("--series", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", type=Path, help="draw what was written before")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    functions = args.functions or [*NUMPY, *(STACKS if args.stack else ())]
    places = ["host", "device"] if args.gpu else ["host"]
    rows = json.loads(args.read.read_text()) if args.read else [
        row for where in places for function in functions
        for row in rows_of(
            where, function, args.orders, args.gpu, args.series, args.stack, args.dtype
        )
    ]  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows))
    if args.plot:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
