"""Picture of a large graph: one mark for the tasks of one step, kind and worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.legend import Legend, heading, worker_mark
from hetero_la.pictures.palette import FAINT, GRID, INK, MUTED, family, text_on
from hetero_la.pictures.scene import Line, Rect, Scene, Text, text_width
from hetero_la.tiles.arrays.counted import counted, in_seconds

#: Maximum marks in a row, and in all, that a page draws without delay.
_MOST_BINS, _MOST_MARKS = 240, 12_000
_LEFT = 118.0
_HIGHEST, _LOWEST = 72.0, 10.0  # of a row: the longest group is as high as the first
_BETWEEN = 7.0  # rows
_WIDTH = 1080.0  # of all steps together, about
_LABELLED = 26.0  # minimum width of a step whose marks have numbers
_EDGES = 48  # maximum number of steps all of which have arrows
_APART = 80.0  # minimum distance of the arrows of two steps, if there are more
_FIGURE = 8.5  # size of the text in a mark
_GAP = 10.0  # between marks with numbers
_LANE = 8.0  # least width that arrows take before a mark


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


def group_flows(placed: PlacedGraph, steps_together: int = 1) -> list[tuple[Key, Key]]:
    """Return the pairs of groups between which data flow.

    Examples
    --------
    >>> import hetero_la
    >>> placed = hetero_la.plan("cholesky", (20, 20), nb=10).graph.placed()
    >>> [(first[:2], second[:2]) for first, second in group_flows(placed)][:2]
    [((0, 'potrf'), (0, 'trtri_n')), ((0, 'potrf'), (0, 'trmm_rc'))]
    """
    tasks = placed.graph.tasks
    keys = [
        (task.step - task.step % steps_together, task.kind, placed.placement[task.index])
        for task in tasks
    ]
    pairs = ((keys[w], keys[task.index]) for task in tasks for w, _ in task.flows if w >= 0)
    return list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))


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
        self._figures = text_width("0.00", _FIGURE) <= self.cell - self._gap
        self.top = heading(self.scene, 16, placed.title, [placed.summary]) + 12
        self.longest = max((group.weight for group in self.groups.values()), default=0.0)
        self.floor: dict[tuple[int, str], float] = {}
        self._rows()
        self._axis()
        many = self.bins > _EDGES
        self.every = next(n for n in ticks() if n * self.cell >= _APART) if many else 1
        arrows = list(self._arrows())
        self._marks()
        self.scene.add(*arrows)
        self.scene.fit()
        self._legend()
        self.scene.fit()

    def _x(self, step: int) -> float:
        return _LEFT + step // self.steps_together * self.cell

    def _high(self, seconds: float) -> float:
        """Return the height of a time: one scale for all rows."""
        return seconds / max(self.longest, 1e-30) * _HIGHEST

    def _rows(self) -> None:
        most: dict[str, float] = {}
        for (_, kind, _), group in self.groups.items():
            most[kind] = max(most.get(kind, 0.0), group.weight)
        y, before = self.top + 10, -1
        right = _LEFT + self.bins * self.cell
        for worker, kind in _rows(self.placed):
            if worker != before:
                y += 14
                mark = worker_mark(worker, 16, y - 12, 15, 15)
                self.scene.add(*mark, Text(36, y, self.placed.workers[worker], 11, bold=True))
                y, before = y + 8, worker
            y += max(self._high(most[kind]), _LOWEST)
            self.floor[worker, kind] = y
            self.scene.add(
                Line(((_LEFT, y), (right, y)), GRID), Text(_LEFT - 16, y, kind, 11, "end"),
            )  # fmt: skip
            y += _BETWEEN
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
        """Draw bars whose height is the time of their tasks; figures where there is room."""
        texts: list[Text] = []
        wide = self.cell - self._gap
        _, unit = self._unit()
        for (step, kind, worker), group in self.groups.items():
            x, floor = self._x(step), self.floor[worker, kind]
            high = max(self._high(group.weight), 1.5)
            colour = family(kind).colour
            tip, link = self._tip(step, kind, worker, group), f"step={step}"
            self.scene.add(Rect(x, floor - high, wide, high, colour, tip=tip, link=link))
            if group.critical:
                self.scene.add(Rect(x, floor, wide, 2.5, INK))
            if self._figures and high >= 13 and (time := group.weight / unit) < 1000:
                figure = f"{time:.2g}" if time < 100 else f"{time:.0f}"
                y = floor - high / 2 + 3.5
                texts.append(Text(x + wide / 2, y, figure, _FIGURE, "middle", text_on(colour)))
        self.scene.add(*texts)

    def _unit(self) -> tuple[str, float]:
        """Return name and seconds of the unit in which the longest time is at least 1."""
        units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
        return next((unit for unit in units if self.longest >= unit[1]), units[-1])

    def _tip(self, step: int, kind: str, worker: int, group: Group) -> str:
        last = min(step + self.steps_together, self.placed.steps) - 1
        steps = f"step {step}" if last == step else f"steps {step} to {last}"
        return (
            f"{kind}, {steps}, {self.placed.workers[worker]}: "
            f"{counted(group.tasks, 'task')}, "
            f"{in_seconds(group.weight)}"
        )

    def _arrows(self) -> Iterator[Line]:
        """Yield arrows of data: to other workers in the same step, and to the step after it."""
        flows = group_flows(self.placed, self.steps_together)
        here = [
            (first, second)
            for first, second in flows
            if first[0] == second[0] and first[2] != second[2] and self._has_arrows(second[0])
        ]
        for (step, source_kind, there), (_, kind, worker) in here:
            x = self._x(step)
            start, end = self.floor[there, source_kind] - 5, self.floor[worker, kind] - 5
            lane = x - max(self._gap, _LANE) + 2
            yield Line(((x, start), (lane, start), (lane, end), (x, end)), FAINT, arrow=True)
        for (step, source_kind, there), (after, kind, worker) in self._to_next_step(flows):
            x, end = self._x(step) + self.cell - self._gap, self._x(after)
            start, stop = self.floor[there, source_kind] - 2, self.floor[worker, kind] - 2
            lane = end - max(self._gap, _LANE) / 2 + 1
            yield Line(((x, start), (lane, start), (lane, stop), (end, stop)), FAINT, arrow=True)

    def _has_arrows(self, step: int) -> bool:
        """Return whether arrows are drawn to the marks of a step: of many, not to each."""
        return step // self.steps_together % self.every == 0

    def _to_next_step(self, flows: list[tuple[Key, Key]]) -> list[tuple[Key, Key]]:
        """Return the flows to the step after it that no others imply."""
        import networkx

        graph = networkx.DiGraph(
            (first, second)
            for first, second in flows
            if first[0] == second[0] or second[0] - first[0] == self.steps_together
            if self._has_arrows(second[0]) or self._has_arrows(first[0] + self.steps_together)
        )
        if networkx.is_directed_acyclic_graph(graph):
            graph = networkx.transitive_reduction(graph)
        return sorted(
            (first, second)
            for first, second in graph.edges
            if first[0] != second[0] and self._has_arrows(second[0])
        )

    def _legend(self) -> None:
        legend = Legend(self.scene, 16, self.bottom + 8, self.scene.width - 32)
        legend.kinds(self.placed.kinds)
        each = (
            "A bar: the tasks of a step"
            if self.steps_together == 1
            else (f"A bar: the tasks of {self.steps_together} steps")
        )
        figures = f"Heights and figures: predicted time, in {self._unit()[0]}"
        legend.note(
            f"{each} of one kernel on one worker. "
            f"{figures if self._figures else 'Heights: predicted time'}; "
            f"the highest is {in_seconds(self.longest)}. Line under it: on the critical path."
        )
        few = f", drawn to every {self.every}th column of bars" if self.every > 1 else ""
        legend.note(
            f"Arrows{few}: data for the next step, and panels that travel to other workers."
        )


def ticks() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    scale = 1
    while True:
        yield from (scale, 2 * scale, 5 * scale)
        scale *= 10
