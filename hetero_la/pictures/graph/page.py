"""HTML page that zooms from the whole graph into a step, a task and its tiles.

The page is self-contained: the picture of the whole graph as SVG, and all tasks as compressed
arrays, which the browser unpacks at once and draws step by step.
"""

from __future__ import annotations

import base64
import importlib.resources
import itertools
import json
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.palette import READ, SERIES, WRITTEN, family, grey, text_on
from hetero_la.pictures.runs.page_data import run_arrays, run_description
from hetero_la.pictures.runs.recording import Recording
from hetero_la.pictures.scene import FONT, Scene
from hetero_la.pictures.svg import svg
from hetero_la.tiles.kernels.spec import SPECS

_FOLDER = importlib.resources.files("hetero_la.pictures") / "web"


#: In the order in which they are joined: each needs only what stands before it.
_SCRIPTS = (
    "theme.js", "tasks.js", "tiles.js", "step.js", "runs.js", "tile_map.js", "tracks.js",
    "timeline.js", "player.js", "search.js", "page.js",
)  # fmt: skip


def page(placed: PlacedGraph, whole: Scene, runs: Sequence[Recording] = ()) -> str:
    """Return the page, which first shows the first run, or `whole` if there is none.

    Parameters
    ----------
    placed : PlacedGraph
        The graph.
    whole : Scene
        Its picture, with links to steps or tasks.
    runs : sequence of Recording, optional
        Runs to play; those of this graph show the tiles as well.

    Examples
    --------
    >>> import hetero_la
    >>> placed = hetero_la.plan("lu", (8, 8), nb=2).graph.placed()
    >>> text = page(placed, Scene(10, 10))
    >>> "<title>LU of 8 × 8" in text, "http" in text.replace("http://www.w3.org/2000/svg", "")
    (True, False)
    """
    arrays = _arrays(placed)
    for number, run in enumerate(runs):
        mine = run_arrays(run, tasks=run.graph is placed.graph)
        arrays |= {f"{number}.{name}": array for name, array in mine.items()}
    parts = {
        "TITLE": escape(placed.title),
        "STYLE": _file("page.css").replace("FONT", FONT),
        "WHOLE": svg(whole),
        "DATA": _script_json({**_description(placed), "runs": list(map(run_description, runs))}),
        "TASKS": _packed(arrays),
        "SCRIPT": "\n".join(map(_file, _SCRIPTS)),
    }
    text = _file("page.html")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part, 1)
    return text


def _file(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """Return JSON that does not contain the end tag of a script."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _description(placed: PlacedGraph) -> dict[str, Any]:
    """Return what is common to all tasks: kernels, workers, tiles."""
    layout = placed.graph.layout
    columns = layout.nt + layout.rt
    return {
        "kinds": [
            {"name": kind, "equation": SPECS[kind].equation, "colour": family(kind).colour,
             "ink": text_on(family(kind).colour)}
            for kind in placed.kinds
        ],
        "workers": [
            {"name": name, "colour": colour, "ink": text_on(colour),
             "grey": grey(worker), "greyInk": text_on(grey(worker))}
            for worker, (name, colour) in enumerate(zip(placed.workers, itertools.cycle(SERIES)))
        ],
        "steps": placed.steps,
        "nt": layout.nt,
        "names": _names(placed),
        "values": list(placed.graph.values),
        "rows": [layout.row(i) for i in range(layout.mt)] + [layout.m],
        "columns": [layout.columns(j)[0] for j in range(columns)] + [layout.width],
        "title": placed.title,
        "summary": placed.summary,
        "read": READ,
        "written": WRITTEN,
    }  # fmt: skip


def _names(placed: PlacedGraph) -> list[str]:
    """Return the names of matrices and per-step values, in the order of their first use."""
    tasks = placed.graph.tasks
    return list(dict.fromkeys(region.name for task in tasks for region in task.accesses))


def _arrays(placed: PlacedGraph) -> dict[str, np.ndarray]:
    """Return arrays of the tasks, and of their regions and predecessors with offsets by task.

    A region is five numbers: 0 for read, 1 for updated and 2 for written; the name; column or step;
    first row of tiles, and the one past the last.
    """
    tasks = placed.graph.tasks
    kinds = {kind: number for number, kind in enumerate(placed.kinds)}
    names = {name: number for number, name in enumerate(_names(placed))}
    regions = [
        (access, names[region.name], region.index, region.start, region.stop)
        for task in tasks
        for access, group in enumerate((task.reads, task.updates, task.writes))
        for region in group
    ]
    critical = np.zeros(len(tasks), np.int32)
    critical[placed.path] = 1
    before = [task.index - other for task in tasks for other in task.after]
    return {
        "kind": np.array([kinds[task.kind] for task in tasks], np.int32),
        "step": np.array([task.step for task in tasks], np.int32),
        "column": np.array([task.column for task in tasks], np.int32),
        "worker": np.array(placed.placement, np.int32),
        "critical": critical,
        "weight": np.asarray(placed.weights, np.float32),
        "regionAt": _offsets([len(task.accesses) for task in tasks]),
        # Transposed, so that similar numbers are adjacent, which compresses well.
        "regions": np.array(regions, np.int32).reshape(-1, 5).T.ravel(),
        "beforeAt": _offsets([len(task.after) for task in tasks]),
        "before": np.array(before, np.int32),
    }


def _offsets(counts: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _packed(arrays: dict[str, np.ndarray]) -> str:
    """Return the arrays deflated in base 64, after the length and the type of each, as JSON.

    All have four bytes a number.
    """
    types = {name: "<f4" if array.dtype.kind == "f" else "<i4" for name, array in arrays.items()}
    data = b"".join(array.astype(types[name]).tobytes() for name, array in arrays.items())
    packed = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
    lengths = {name: [len(array), types[name][1]] for name, array in arrays.items()}
    return _script_json({"lengths": lengths, "data": packed})
