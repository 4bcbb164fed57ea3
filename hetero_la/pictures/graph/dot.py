"""Writer of graphs in the DOT language of Graphviz."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hetero_la.pictures.graph.collapsed import Key, collapse, group_flows
from hetero_la.pictures.graph.every_task import data_edges
from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.palette import FAINT, INK, family, text_on
from hetero_la.tiles.arrays.counted import in_seconds


def dot(placed: PlacedGraph, *, collapsed: bool) -> str:
    r"""Return the graph in the DOT language; steps are ranks, from left to right.

    Examples
    --------
    >>> import hetero_la
    >>> placed = hetero_la.plan("qr", (2, 2), nb=2).graph.placed()
    >>> print(dot(placed, collapsed=False).splitlines()[4])
      t0 [label="geqrf\nstep 0 column 0\ncaller", fillcolor="#D55E00", ...
    """
    body = _groups(placed) if collapsed else _tasks(placed)
    lines = [
        "digraph {",
        f'  label="{_quoted(placed.title)}\\n{_quoted(placed.summary)}"; labelloc=t; rankdir=LR;',
        '  node [shape=box, style=filled, fontname="DejaVu Sans", fontsize=10];',
        f'  edge [color="{FAINT}"];',
        *body,
        "}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _node(name: str, label: list[str], kind: str, *, critical: bool) -> str:
    colour = family(kind).colour
    border = ", penwidth=3" if critical else ""
    text = "\\n".join(map(_quoted, label))
    return (
        f'  {name} [label="{text}", fillcolor="{colour}", fontcolor="{text_on(colour)}"{border}];'
    )


def _tasks(placed: PlacedGraph) -> Iterator[str]:
    on_path, heavy = set(placed.path), set(pairwise(placed.path))
    for task in placed.graph.tasks:
        worker = placed.workers[placed.placement[task.index]]
        where = f"step {task.step} {placed.column_name(task.column)}"
        label = [task.kind, where, worker]
        yield _node(f"t{task.index}", label, task.kind, critical=task.index in on_path)
    for first, second in sorted({*data_edges(placed), *heavy}):
        bold = f' [color="{INK}", penwidth=3]' if (first, second) in heavy else ""
        yield f"  t{first} -> t{second}{bold};"


def _groups(placed: PlacedGraph) -> Iterator[str]:
    numbers: dict[Key, int] = {}
    for (step, kind, worker), group in collapse(placed).items():
        numbers[step, kind, worker] = number = len(numbers)
        label = [f"{group.tasks} {kind}", in_seconds(group.weight), f"step {step}"]
        label.append(placed.workers[worker])
        yield _node(f"g{number}", label, kind, critical=group.critical)
    yield from (f"  g{numbers[a]} -> g{numbers[b]};" for a, b in group_flows(placed))
