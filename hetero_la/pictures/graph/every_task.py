"""Picture of every task: one row for each tile column, steps from left to right.

The tasks of a step on one column stand one above the other.  Arrows are data that a task reads
from another one; edges that follow from other arrows are left out, and so are those that only
keep a task from overwriting data too early.
"""

from __future__ import annotations

from itertools import pairwise

from hetero_la.pictures.graph.placed import PlacedGraph
from hetero_la.pictures.legend import Legend, heading, worker_mark
from hetero_la.pictures.palette import FAINT, GRID, INK, MUTED, family, text_on
from hetero_la.pictures.scene import Line, Point, Rect, Scene, Text
from hetero_la.scheduler.graph.tasks import INITIAL, Task
from hetero_la.tiles.arrays.counted import in_seconds

_MARK, _NAME, _HEIGHT = 13.0, 54.0, 16.0  # of a task: worker's number, kernel's name, height
_BOX = _MARK + _NAME
_GAP = 6.0  # between tasks of one cell
_ROW = 16.0  # between rows
_LANE = 5.0  # between arrows side by side
_LEFT = 84.0


def draw_every_task(placed: PlacedGraph) -> Scene:
    """Draw a small graph.

    Examples
    --------
    >>> import hetero_la
    >>> scene = draw_every_task(hetero_la.plan("qr", (4, 4), nb=2).graph.placed())
    >>> sum(isinstance(shape, Text) and shape.text == "geqrf" for shape in scene.shapes)
    2
    """
    return _EveryTask(placed).scene


def data_edges(placed: PlacedGraph) -> list[tuple[int, int]]:
    """Return the pairs of tasks between which data flow, transitively reduced."""
    import networkx

    flows = networkx.DiGraph()
    flows.add_edges_from(
        (writer, task.index)
        for task in placed.graph.tasks
        for writer, _ in task.flows
        if writer != INITIAL
    )
    return sorted(networkx.transitive_reduction(flows).edges)


class _EveryTask:
    def __init__(self, placed: PlacedGraph) -> None:
        self.placed, self.scene = placed, Scene()
        self.cells: dict[tuple[int, int], list[Task]] = {}
        for task in placed.graph.tasks:
            self.cells.setdefault((task.step, task.column), []).append(task)
        self.position = {
            task.index: place for cell in self.cells.values() for place, task in enumerate(cell)
        }
        self.top = heading(self.scene, 16, placed.title, [placed.summary]) + 20
        self.edges = data_edges(placed)
        self.corner: dict[int, Point] = {}  # of each task
        self._place()
        self._grid()
        self._arrows()
        self._boxes()
        self.scene.fit()
        self._legend()
        self.scene.fit()

    def _place(self) -> None:
        """Place rows, as high as their fullest cell, and steps, with gutters for their arrows."""
        fullest: dict[int, int] = {}
        for (_, column), cell in self.cells.items():
            fullest[column] = max(fullest.get(column, 0), len(cell))
        self.row, y = {}, self.top + 22
        for column in sorted(fullest):
            self.row[column] = y
            y += fullest[column] * (_HEIGHT + _GAP) - _GAP + _ROW
        self.bottom = y
        self._choose_lanes()
        self.step_x, x = [], _LEFT
        for step in range(self.placed.steps):
            x += 20 + _LANE * self.lanes.get(step, 0)
            self.step_x.append(x)
            x += _BOX
        self.right = x
        for (step, _), cell in self.cells.items():
            for task in cell:
                self.corner[task.index] = (self.step_x[step], self._y(task))

    def _y(self, task: Task) -> float:
        return self.row[task.column] + self.position[task.index] * (_HEIGHT + _GAP)

    def _choose_lanes(self) -> None:
        """Assign lanes in the gutters, so that arrows from different tasks do not overlap."""
        tasks = self.placed.graph.tasks
        spans: dict[int, list[float]] = {}  # y coordinates that the arrows of a task reach
        for first, second in {*self.edges, *pairwise(self.placed.path)}:
            if self._beside(tasks[first], tasks[second]):
                spans.setdefault(first, [self._y(tasks[first])]).append(self._y(tasks[second]))
        self.lane: dict[int, int] = {}
        self.lanes: dict[int, int] = {}  # number of lanes in each step
        taken: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for first, reached in sorted(spans.items()):
            step, low, high = tasks[first].step, min(reached), max(reached)
            lane = 0
            while any(low <= b and a <= high for a, b in taken.get((step, lane), ())):
                lane += 1
            taken.setdefault((step, lane), []).append((low, high))
            self.lane[first] = lane
            self.lanes[step] = max(self.lanes.get(step, 0), lane + 1)

    def _grid(self) -> None:
        for step, x in enumerate(self.step_x):
            text = f"step {step}"
            self.scene.add(Text(x + _BOX / 2, self.top + 8, text, 11, "middle", MUTED))
        for column, y in self.row.items():
            line = Line(((16, y - _ROW / 2), (self.right, y - _ROW / 2)), GRID)
            name = self.placed.column_name(column)
            self.scene.add(line, Text(16, y + 12, name, 11, fill=MUTED))

    def _boxes(self) -> None:
        on_path = set(self.placed.path)
        boxes: list[Rect] = []
        texts: list[Text] = []
        for task in self.placed.graph.tasks:
            x, y = self.corner[task.index]
            colour = family(task.kind).colour
            tip, link = _tip(self.placed, task), f"task={task.index}"
            boxes.append(Rect(x, y, _BOX, _HEIGHT, colour, tip=tip, link=link))
            mark, number = worker_mark(self.placed.placement[task.index], x, y, _MARK, _HEIGHT)
            boxes.append(mark)
            size = 9.5 if len(task.kind) < 8 else 8.5
            middle = x + _MARK + _NAME / 2
            name = Text(middle, y + 11.5, task.kind, size, "middle", text_on(colour))
            texts += [number, name]
            if task.index in on_path:
                boxes.append(Rect(x, y, _BOX, _HEIGHT, stroke=INK, thickness=2.5))
        # Shapes of one type follow each other: Matplotlib draws such runs at once.
        self.scene.add(*boxes, *texts)

    def _arrows(self) -> None:
        heavy = set(pairwise(self.placed.path))
        for first, second in self.edges:
            if (first, second) not in heavy:
                self.scene.add(Line(self._route(first, second), FAINT, 1.0, arrow=True))
        for first, second in sorted(heavy):
            self.scene.add(Line(self._route(first, second), INK, 2.5, arrow=True))

    def _beside(self, first: Task, second: Task) -> bool:
        """Return whether an arrow within a step runs in the gutter beside its two tasks."""
        below = self.position[second.index] == self.position[first.index] + 1
        return first.step == second.step and not (first.column == second.column and below)

    def _route(self, first: int, second: int) -> tuple[Point, ...]:
        """Return the points of an arrow: straight down, in the gutter of its step, or across it."""
        one, other = self.placed.graph.tasks[first], self.placed.graph.tasks[second]
        (x0, y0), (x1, y1) = self.corner[first], self.corner[second]
        middle = _HEIGHT / 2
        if self._beside(one, other):
            lane = x0 - 10 - _LANE * self.lane[first]
            return (x0, y0 + middle), (lane, y0 + middle), (lane, y1 + middle), (x1, y1 + middle)
        if one.step == other.step:
            return (x0 + _BOX / 2, y0 + _HEIGHT), (x1 + _BOX / 2, y1)
        # Arrows within a step end in the middle of a task, those from another above it.
        start, end, turn = y0 + middle, y1 + middle - 4, x0 + _BOX + 6
        if one.column == other.column and one.step + 1 < other.step:
            turn = x1 - 8  # in the free part of its own row
        return (x0 + _BOX, start), (turn, start), (turn, end), (x1, end)

    def _legend(self) -> None:
        legend = Legend(self.scene, 16, self.bottom + 8, self.scene.width - 32)
        legend.kinds(self.placed.kinds)
        legend.workers(self.placed.workers)
        legend.outline("critical path")
        legend.end_row()
        legend.note("Arrows: data from task to task. Rows: tile columns. Numbers: workers.")


def _tip(placed: PlacedGraph, task: Task) -> str:
    worker = placed.workers[placed.placement[task.index]]
    return (
        f"{task.kind}, step {task.step}, {placed.column_name(task.column)}, {worker}: "
        f"{in_seconds(placed.weights[task.index])}"
    )
