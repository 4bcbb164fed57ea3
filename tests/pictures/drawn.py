"""What the tests of pictures share."""

from __future__ import annotations

import functools
from xml.etree import ElementTree

import hetero_la
from hetero_la.algorithms import routines as registry
from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.scheduler.placement.workers import WorkerInfo

GPUS = tuple(WorkerInfo(f"gpu{i}", "gpu", f"inproc://{i}", device=i) for i in range(4))
CPU = WorkerInfo("cpu0", "cpu", "inproc://c", blas_threads=4)
#: Routines of the subcommands, and their variants.
ROUTINES = [name for name, routine in registry.ROUTINES.items() if routine.command]
_SVG = "{http://www.w3.org/2000/svg}"


@functools.cache
def placed(
    routine: str = "lu", tiles: int = 8, workers: int = 2, granularity: str = "column"
) -> PlacedGraph:
    """The graph of a square matrix, on GPUs that need not be there."""
    plan = hetero_la.plan(
        routine, (10 * tiles, 10 * tiles), nb=10, workers=GPUS[:workers] or (CPU,),
        nrhs=0 if registry.ROUTINES[routine].factors else 15,
    )  # fmt: skip
    return plan.graph.placed(granularity)  # type: ignore[arg-type]


def shapes(text: str, name: str) -> list[ElementTree.Element]:
    """Elements of an SVG picture, by their name."""
    return ElementTree.fromstring(text).findall(f".//{_SVG}{name}")


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in shapes(svg, "text")]
