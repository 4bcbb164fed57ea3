"""Factorizations of a matrix on the host by one GPU, beside the same on the device.

    python benchmarks/host_to_host.py 16384 32768 --repeats 3

Contenders in turns: the matrix on the device and in place; in pinned memory and in place; in
pageable memory, column-major or row-major, with the result in new pages; and tested for NaN.  The
prediction is that of the plan that was followed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy

import hetero_la
from hetero_la.studies.factorizations.device_data import random_columns
from hetero_la.tiles.arrays.transfer import pinned_empty
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.host_copies import HostCopies

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lu": hetero_la.lu_factor, "cholesky": hetero_la.cho_factor, "qr": hetero_la.qr_factor
}  # fmt: skip


def random_matrix(n: int, dtype: str, diagonal: float) -> Any:
    """A random matrix on the GPU, column-major."""
    a = cupy.empty((n, n), dtype, order="F")
    for start in range(0, n, 2048):
        shape = (n, min(2048, n - start))
        a[:, start : start + 2048] = random_columns(start, shape, dtype, diagonal)
    return a


class Case:
    """One factorization of one matrix, wherever it is."""

    def __init__(self, routine: str, n: int, dtype: str, client: Any) -> None:
        self.factor, self.client = FUNCTIONS[routine], client
        self.options = {"lower": True} if routine == "cholesky" else {}
        self.original = random_matrix(n, dtype, float(n) if routine == "cholesky" else 0.0)
        self.pageable = HostCopies(GpuDevice(0)).to_host(self.original)
        self.pinned = pinned_empty((n, n), dtype)
        self.predicted: dict[str, float] = {}

    def seconds(self, name: str, a: Any, **how: Any) -> float:
        """Time a call; keep what its plan predicts."""
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        factors = self.factor(a, client=self.client, **self.options, **how)
        cupy.cuda.Device().synchronize()
        taken = time.perf_counter() - began
        self.predicted[name] = factors.plan.predicted_seconds
        return taken

    def contenders(self) -> dict[str, Callable[[], float]]:
        """What is compared."""
        work = cupy.empty_like(self.original)

        def on_device() -> float:
            work[...] = self.original
            return self.seconds("device", work, overwrite_a=True, check_finite=False)

        def in_place() -> float:
            self.original.get(out=self.pinned)
            return self.seconds("pinned", self.pinned, overwrite_a=True, check_finite=False)

        return {
            "device": on_device,
            "pinned": in_place,
            "pageable": lambda: self.seconds("pageable", self.pageable, check_finite=False),
            "row-major": lambda: self.seconds("row-major", self.pageable.T, check_finite=False),
            "tested": lambda: self.seconds("tested", self.pageable),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("orders", type=int, nargs="+")
    parser.add_argument("--routines", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{'':31}seconds (least to most)   over device   predicted over measured")
    with hetero_la.Cluster(gpus=1) as cluster:
        for n in args.orders:
            for routine in args.routines:
                case = Case(routine, n, args.dtype, cluster.private_client())
                contenders = case.contenders()
                taken = [
                    {k: run() for k, run in contenders.items()} for _ in range(args.repeats + 1)
                ]
                medians = {k: statistics.median(t[k] for t in taken[1:]) for k in contenders}
                for name, median in medians.items():
                    span = [t[name] for t in taken[1:]]
                    print(
                        f"{routine:9}{n:6} {name:16}{median:7.3f} ({min(span):.3f} to "
                        f"{max(span):.3f}; first {taken[0][name]:.3f}) "
                        f"{median / medians['device']:8.2f}"
                        f"{case.predicted[name] / median:13.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
