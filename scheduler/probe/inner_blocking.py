"""Probe of the inner blocking `ib` of a panel: the columns that one kernel of a GPU factors."""

from __future__ import annotations

from dataclasses import replace

from hetero_la.scheduler.probe.device_probe import Probe
from hetero_la.scheduler.probe.kernels import measure_kernels
from hetero_la.tiles.kernels.gpu import lu, qr

#: Heights and widths of the panels, and the least gain for which the default is replaced.
_HEIGHTS, _WIDTHS = (4096, 16384), (512,)
_GAIN = 0.03


def measure_inner_blocking(probe: Probe) -> dict[str, float]:
    """Time panels of LU and QR over `ib`, from its default down to an eighth of that.

    Parameters
    ----------
    probe : Probe
        Probe of a GPU, which has to be the current one.

    Returns
    -------
    dict
        ``"getrf_ib"`` and ``"geqrf_ib"``, the fastest; and ``"getrf_ib64_seconds"`` and so on.
    """
    defaults = {"getrf": lu.SHAPES[0].columns(probe.dtype), "geqrf": qr.LANES}
    figures: dict[str, float] = {}
    for kind, largest in defaults.items():
        seconds = {ib: _panels(probe, kind, ib) for ib in (largest >> i for i in range(4)) if ib}
        figures |= {f"{kind}_ib{ib}_seconds": taken for ib, taken in seconds.items()}
        best = min(seconds, key=seconds.__getitem__)
        worth = seconds[best] < (1 - _GAIN) * seconds[largest]
        figures[f"{kind}_ib"] = best if worth else largest
    return figures


def _panels(probe: Probe, kind: str, ib: int) -> float:
    """Return the seconds of panels with inner blocking `ib`, summed over their heights."""
    with_ib = replace(probe, options=replace(probe.options, ib=ib))
    return sum(measure_kernels([with_ib], {kind: (_HEIGHTS, _WIDTHS)}).by_kind[kind].seconds)
