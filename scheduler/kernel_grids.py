"""The sizes at which kernels are measured."""

from __future__ import annotations

import math

from hetero_la.scheduler.rates import MEASURABLE, Sizes

Axes = tuple[Sizes, ...]

_CPU_TILES = (32, 64, 128, 192, 256, 384, 512)
_CPU_WIDTHS = (64, 128, 256, 512, 2048)
_GPU_TILES = (64, 128, 256, 512, 1024, 2048)
_CPU: dict[str, Axes] = {
    "gemm": ((64, 256, 1024, 4096), (64, 128, 192, 256, 384, 512), _CPU_WIDTHS),
    "herk": ((64, 128, 192, 256, 384, 512), _CPU_WIDTHS),
    "larfb_c": ((256, 1024, 4096), (64, 128, 192, 256, 384), _CPU_WIDTHS),
    "trmm": ((64, 128, 192, 256, 384, 512), (64, 192, 512, 2048)),
    "trmm_rc": ((64, 128, 192, 256, 384, 512), (64, 256, 1024, 4096)),
    "trsm": ((64, 128, 192, 256, 384, 512), (1, 64, 512, 2048)),
    "getrf": ((512, 1024, 2048, 4096, 8192), _CPU_TILES),
    "geqrf": ((512, 1024, 2048, 4096, 8192), _CPU_TILES),
    **dict.fromkeys(("potrf", "trtri", "trtri_n", "netperm", "lacpy"), (_CPU_TILES,)),
    "compose": (_CPU_TILES[2::2], (512, 2048, 8192)),
    "swap": (_CPU_TILES[2::2], (512, 2048, 8192), (192, 2048)),
    "laswp": ((512, 2048, 8192), (192, 512)),
}
_GPU: dict[str, Axes] = {
    "gemm": (
        (256, 1024, 4096, 16384, 32768), (128, 256, 512, 1024), (256, 1024, 4096, 16384),
    ),
    "herk": ((256, 512, 1024), (256, 1024, 4096, 16384)),
    "larfb_c": ((1024, 4096, 16384, 32768), (128, 256, 512, 1024), (256, 1024, 4096, 16384)),
    "trmm": ((128, 256, 512, 1024), (256, 1024, 4096, 16384)),
    "trmm_rc": ((128, 256, 512, 1024), (256, 1024, 4096, 16384, 32768)),
    "trsm": ((128, 256, 512, 1024), (1, 256, 1024, 4096)),
    "getrf": ((1024, 4096, 8192, 16384, 32768, 65536), (64, 128, 256, 512, 1024)),
    "geqrf": ((1024, 4096, 8192, 16384, 32768, 65536), (64, 128, 256, 512, 1024)),
    **dict.fromkeys(("potrf", "trtri", "trtri_n", "netperm", "lacpy"), (_GPU_TILES,)),
    "potrf": ((*_GPU_TILES, 4096),),
    "compose": ((256, 512, 1024), (1024, 8192, 65536)),
    "swap": ((128, 256, 512, 1024), (1024, 8192, 32768), (256, 2048, 16384)),
    "laswp": ((1024, 8192, 32768), (256, 1024)),
}  # fmt: skip


def grids(
    kind: str, *, quick: bool = False, nbytes: float = math.inf, itemsize: int = 8
) -> dict[str, Axes]:
    """The sizes at which kernels of a device kind are measured.

    Parameters
    ----------
    kind : {"cpu", "gpu"}
        Of the device.
    quick : bool, optional
        Take every other value of each size, up to the largest.
    nbytes : float, optional
        Memory that the arrays of a kernel may take: where they would take more, the
        largest sizes are left out.
    itemsize : int, optional
        Bytes of an element.

    Examples
    --------
    >>> grids("cpu")["potrf"], grids("cpu", quick=True)["potrf"]
    (((32, 64, 128, 192, 256, 384, 512),), ((32, 128, 256, 512),))
    """
    found = {}
    for name, axes in (_GPU if kind == "gpu" else _CPU).items():
        if quick:
            axes = tuple(axis[(len(axis) - 1) % 2 :: 2] for axis in axes)
        while _nbytes(name, axes, itemsize) > nbytes and any(len(axis) > 1 for axis in axes):
            longest = max(axis[-1] for axis in axes if len(axis) > 1)
            axes = tuple(
                axis[:-1] if axis[-1] == longest and len(axis) > 1 else axis for axis in axes
            )
        found[name] = axes
    return found


def _nbytes(name: str, axes: Axes, itemsize: int) -> int:
    largest = MEASURABLE[name].shapes(*(axis[-1] for axis in axes))
    return 2 * itemsize * sum(math.prod(shape) for shape in largest)  # panels are kept twice
