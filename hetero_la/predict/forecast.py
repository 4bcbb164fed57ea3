"""Predicted run of a factorization on a described machine."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_la.algorithms.routines import ROUTINES, title_of
from hetero_la.planning.memory import CHUNKS, kernel_elements
from hetero_la.scheduler.graph.step_kernels import StepKernels, Tile
from hetero_la.scheduler.machine.cluster_model import ClusterModel
from hetero_la.scheduler.predict.at_scale import ScaledRun
from hetero_la.tiles.arrays.counted import a_matrix, counted, in_bytes, in_seconds, in_units
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.kernels.device import KernelOptions
from hetero_la.tiles.storage.layout import TileLayout

_BOUNDS = {
    "panel": "the chain of panels, each factored on one GPU",
    "look-ahead update": "the update of each next panel, on one GPU",
    "trailing update": "the trailing updates, on all GPUs",
    "network": "the transfer of panels from node to node",
    "links in a node": "the transfer of panels inside the nodes",
    "end": "what follows the last panel",
}


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """Prediction of a factorization on a machine.

    Attributes
    ----------
    routine : str
        The factorization.
    layout : TileLayout
        Tiles of the matrix.
    dtype : numpy.dtype
        Element type.
    machine : ClusterModel
        The machine.
    gpus, lookahead : int
        Number of GPUs, and look-ahead depth.
    run : ScaledRun
        The simulated run.
    """

    routine: str
    layout: TileLayout
    dtype: np.dtype[Any]
    machine: ClusterModel
    gpus: int
    lookahead: int
    run: ScaledRun

    _repr_html_ = as_html

    def __repr__(self) -> str:
        rate = in_units(self.rate, "flop/s")
        return one_line("Forecast", self.title, in_seconds(self.seconds), rate)

    def __str__(self) -> str:
        return self.explain()

    @property
    def title(self) -> str:
        """What is computed, and on what."""
        layout, gpus = self.layout, counted(self.gpus, "GPU")
        matrix = a_matrix(layout.m, layout.n, self.dtype.name)
        return f"{title_of(self.routine)} of {matrix} on {gpus} of {self.machine.name}"

    @property
    def seconds(self) -> float:
        """Predicted time, with the columns distributed beforehand."""
        return self.run.makespan

    @property
    def flops(self) -> float:
        """Real floating-point operations, as LAPACK counts them."""
        total = ROUTINES[self.routine].flops(self.layout.m, self.layout.n, 0)
        return total * (4 if self.dtype.kind == "c" else 1)

    @property
    def rate(self) -> float:
        """Flop/s of all GPUs together."""
        return self.flops / max(self.seconds, 1e-12)

    @property
    def peak(self) -> float:
        """Asymptotic flop/s of matrix products on one GPU, in the element type."""
        gpu = self.machine.gpu
        return gpu.gemm_rate * (4 if self.dtype.kind == "c" else 1) / gpu.work(self.dtype)

    @property
    def efficiency(self) -> float:
        """Rate as a fraction of the asymptotic rate of matrix products on all GPUs."""
        return self.rate / (self.gpus * self.peak)

    @property
    def busy(self) -> float:
        """Average fraction of the time in which a GPU computes.

        Work that overlaps a panel counts twice, so the figure may be too large for few GPUs.
        """
        return float(np.minimum(self.run.busy / max(self.seconds, 1e-12), 1.0).mean())

    @property
    def bound(self) -> str:
        """Largest part of the longest chain of waits: one of `at_scale.PARTS`."""
        return max(self.run.parts, key=self.run.parts.__getitem__)

    @functools.cached_property
    def memory(self) -> int:
        """Bytes that the fullest GPU needs, as `Plan.bytes_needed` would from its program.

        These are its columns, the panels received, values and workspace.
        """
        layout, gpus = self.layout, self.gpus
        steps = StepKernels.of(ROUTINES[self.routine].tasks)
        tiles = [Tile.of(layout, k) for k in range(layout.kt)]
        shares = [range(first, layout.nt, gpus) for first in range(gpus)]
        widths = [sum(map(layout.column_width, share)) for share in shares]
        width = max(widths)
        own = shares[widths.index(width)]  # with tiles of growing size this need not be the first
        kept = sum(steps.kept_elements(tiles[column]) for column in own if column < layout.kt)
        # Of the panels of one width the first is the tallest.
        sizes = reversed([*enumerate(layout.column_widths[: layout.kt])])
        tallest = {width: k for k, width in sizes}
        panel = max(steps.message_bytes(tiles[k], self.dtype) for k in tallest.values())
        received = (self.lookahead + 2) * panel if gpus > 1 else 0
        tries = any(call.kind == "geqrf" for call in steps.panel(tiles[0]))
        elements = layout.m * width + kept + kernel_elements(layout, width, cholesky_qr=tries)
        return elements * self.dtype.itemsize + received + CHUNKS * KernelOptions().chunk

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU has enough memory."""
        return self.memory <= self.machine.memory

    def explain(self) -> str:
        """Return a text that tells the predicted time, and what bounds it.

        Examples
        --------
        >>> from hetero_la.predict.scaling import forecast
        >>> print(forecast("lu", (65536, 65536), "dgx-h200", 4, nb=1024).explain())
        lu of a 65536 x 65536 float64 matrix on 4 GPUs of DGX H200
        tiles: nb = 1024, 64 steps; look-ahead: 1 panel
        memory: 10.9 GB of 141 GB on the fullest GPU
        predicted: ... s, ... Tflop/s, ... % of 4 x 54 Tflop/s; GPUs compute ... % of the time
        bound by the trailing updates, on all GPUs; the longest chain of waits is
          panel ... %
          look-ahead update ... %
          trailing update ... %
          network ... %
          links in a node ... %
          end ... %
        """
        whole = max(self.seconds, 1e-12)
        lines = [self.title, *(f"{name} {text}" for name, text in self.facts().items())]
        lines[-1] += "; the longest chain of waits is"
        lines += [f"  {part:<17} {100 * t / whole:5.1f} %" for part, t in self.run.parts.items()]
        return "\n".join(lines)

    def facts(self) -> dict[str, str]:
        """Return what is predicted, by name, as text."""
        layout = self.layout
        room = f"{in_bytes(self.memory)} of {in_bytes(self.machine.memory)}"
        return {
            "tiles:": f"nb = {layout.nb_text}, {counted(layout.kt, 'step')}; "
            f"look-ahead: {counted(self.lookahead, 'panel')}",
            "memory:": f"{room} on the fullest GPU{'' if self.fits else ': it does not fit'}",
            "predicted:": f"{in_seconds(self.seconds)}, {in_units(self.rate, 'flop/s')}, "
            f"{self.efficiency:.1%} of {self.gpus} x {in_units(self.peak, 'flop/s')}; "
            f"GPUs compute {self.busy:.1%} of the time".replace("%", " %"),
            "bound by": _BOUNDS[self.bound],
        }
