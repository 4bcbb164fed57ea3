"""Picture of a large graph: one mark for the tasks of one step, kind and worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.legend import Legend, heading, worker_mark
from hetero_la.pictures.palette import FAINT, GRID, INK, MUTED, family, text_on
from hetero_la.pictures.scene import Line, Rect, Scene, Text
from hetero_la.tiles.arrays.counted import counted, in_seconds

#: Maximum marks in a row, and in all, that a page draws without delay.
_MOST_BINS, _MOST_MARKS = 240, 12_000
_LEFT = 118.0
_ROW, _BAR = 26.0, 20.0
_WIDTH = 1080.0  # of all steps together, about
_LABELLED = 26.0  # minimum width of a step whose marks have numbers
_EDGES = 40  # maximum number of steps with arrows
_GAP = 10.0  # between marks with numbers


@dataclass
class Group:
    """Tasks that are drawn as one mark."""

    tasks: int = 0
    weight: float = 0.0
    critical: bool = False


Key = tuple[int, str, int]  #: step (or the first of several), kind, worker


def steps_per_mark(placed: PlacedGraph) -> int:
    """Return the number of steps per mark, which is 1 unless there are very many steps."""
    rows = max(len(_rows(placed)), 1)
    bins = max(min(_MOST_BINS, _MOST_MARKS // rows), 1)
    return max(-(-placed.steps // bins), 1)


def collapse(placed: PlacedGraph, steps_together: int = 1) -> dict[Key, Group]:
    """Group the tasks by step, kind and worker; `steps_together` steps count as one.

    Examples
    --------
    >>> import hetero_la
    >>> placed = hetero_la.plan("cholesky", (30, 30), nb=10).graph.placed()
    >>> [(key, group.tasks) for key, group in collapse(placed).items()][:4]
    [((0, 'potrf', 0), 1), ((0, 'trtri_n', 0), 1), ((0, 'trmm_rc', 0), 1), ((0, 'herk', 0), 2)]
    """
    on_path = set(placed.path)
    groups: dict[Key, Group] = {}
    weights = placed.weights.tolist()
    for task in placed.graph.tasks:
        key = (task.step - task.step % steps_together, task.kind, placed.placement[task.index])
        group = groups.setdefault(key, Group())
        group.tasks += 1
        group.weight += weights[task.index]
        group.critical = group.critical or task.index in on_path
    return groups


def _rows(placed: PlacedGraph) -> list[tuple[int, str]]:
    """Return (worker, kind) of each row, from the top."""
    present = {(placed.placement[task.index], task.kind): None for task in placed.graph.tasks}
    order = {kind: at for at, kind in enumerate(placed.kinds)}
    return sorted(present, key=lambda row: (row[0], order[row[1]]))


def draw_collapsed(placed: PlacedGraph) -> Scene:
    """Draw a large graph.

    Examples
    --------
    >>> import hetero_la
    >>> scene = draw_collapsed(hetero_la.plan("lu", (300, 300), nb=10).graph.placed())
    >>> scene.width < 1400
    True
    """
    return _Collapsed(placed).scene


class _Collapsed:
    def __init__(self, placed: PlacedGraph) -> None:
        self.placed, self.scene = placed, Scene()
        self.steps_together = steps_per_mark(placed)
        self.groups = collapse(placed, self.steps_together)
        self.bins = -(-placed.steps // self.steps_together)
        self.cell = min(max(_WIDTH / max(self.bins, 1), 4.0), 52.0)
        self._gap = _GAP if self.cell >= _LABELLED else 0.0
        self.top = heading(self.scene, 16, placed.title, [placed.summary]) + 12
        self.row: dict[tuple[int, str], float] = {}
        self._rows()
        self._axis()
        arrows = list(self._arrows()) if self.bins <= _EDGES else []
        self._marks()
        self.scene.add(*arrows)
        self.scene.fit()
        self._legend()
        self.scene.fit()

    def _x(self, step: int) -> float:
        return _LEFT + step // self.steps_together * self.cell

    def _rows(self) -> None:
        y, before = self.top + 10, -1
        right = _LEFT + self.bins * self.cell
        for worker, kind in _rows(self.placed):
            if worker != before:
                y += 14
                mark = worker_mark(worker, 16, y - 12, 15, 15)
                self.scene.add(*mark, Text(36, y, self.placed.workers[worker], 11, bold=True))
                y, before = y + 8, worker
            self.row[worker, kind] = y
            self.scene.add(
                Line(((_LEFT, y + _BAR), (right, y + _BAR)), GRID),
                Text(_LEFT - 16, y + _BAR - 5, kind, 11, "end"),
            )
            y += _ROW
        self.bottom = y

    def _axis(self) -> None:
        """Draw the numbers of the steps, as many as are legible."""
        every = next(n for n in ticks() if n * self.cell / self.steps_together >= 38)
        y = self.bottom + 12
        for step in range(0, self.placed.steps, every):
            x = self._x(step) + (self.cell - self._gap) / 2
            self.scene.add(
                Line(((x, self.top + 12), (x, y - 9)), GRID),
                Text(x, y + 3, str(step), 11, "middle", MUTED),
            )
        self.scene.add(Text(_LEFT - 16, y + 3, "step", 11, "end", MUTED))
        self.bottom = y + 14

    def _marks(self) -> None:
        """Draw bars whose height is the number of tasks, relative to the row's maximum."""
        most: Counter[tuple[int, str]] = Counter()
        for (_, kind, worker), group in self.groups.items():
            most[worker, kind] = max(most[worker, kind], group.tasks)
        texts: list[Text] = []
        gap = self._gap
        for (step, kind, worker), group in self.groups.items():
            x, floor = self._x(step), self.row[worker, kind] + _BAR
            high = max(group.tasks / most[worker, kind] * _BAR, 2.5)
            colour, wide = family(kind).colour, self.cell - gap
            tip, link = self._tip(step, kind, worker, group), f"step={step}"
            self.scene.add(Rect(x, floor - high, wide, high, colour, tip=tip, link=link))
            if group.critical:
                self.scene.add(Rect(x, floor, wide, 3.0, INK))
            if gap:
                inside = high >= 13
                ink = text_on(colour) if inside else INK
                y = floor - 4 if inside else floor - high - 2
                texts.append(Text(x + wide / 2, y, str(group.tasks), 9.5, "middle", ink))
        self.scene.add(*texts)

    def _tip(self, step: int, kind: str, worker: int, group: Group) -> str:
        last = min(step + self.steps_together, self.placed.steps) - 1
        steps = f"step {step}" if last == step else f"steps {step} to {last}"
        return (
            f"{kind}, {steps}, {self.placed.workers[worker]}: "
            f"{counted(group.tasks, 'task')}, "
            f"{in_seconds(group.weight)}"
        )

    def _arrows(self) -> Iterator[Line]:
        """Yield the arrows of panels that travel to other workers, between the steps."""
        pairs: dict[tuple[Key, Key], None] = {}
        for task in self.placed.graph.tasks:
            here = self.placed.placement[task.index]
            for writer, _ in task.flows:
                source = self.placed.graph.tasks[writer]
                there = self.placed.placement[writer]
                if writer >= 0 and there != here and source.step == task.step:
                    step = task.step
                    pairs[(step, source.kind, there), (step, task.kind, here)] = None
        for (step, source_kind, there), (_, kind, here) in pairs:
            x, start, end = self._x(step), self.row[there, source_kind], self.row[here, kind]
            start, end = start + _BAR - 5, end + _BAR - 5
            gap = x - _GAP + 2
            yield Line(((x, start), (gap, start), (gap, end), (x, end)), FAINT, arrow=True)

    def _legend(self) -> None:
        legend = Legend(self.scene, 16, self.bottom + 8, self.scene.width - 32)
        legend.kinds(self.placed.kinds)
        each = (
            "A bar: the tasks of a step"
            if self.steps_together == 1
            else (f"A bar: the tasks of {self.steps_together} steps")
        )
        legend.note(
            f"{each} of one kernel on one worker; its height: how many, against the row's most. "
            "Black line under it: on the critical path."
        )
        if self.bins <= _EDGES and len(self.placed.workers) > 1:
            legend.note("Arrows: panels that travel to another worker, in their step.")


def ticks() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    scale = 1
    while True:
        yield from (scale, 2 * scale, 5 * scale)
        scale *= 10
