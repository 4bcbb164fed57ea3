"""Animation of a run: the tiles through time, beside its timeline with a cursor."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero_la.pictures.gif import font, gif, pillow
from hetero_la.pictures.palette import GRID, INK, MUTED, PAPER, family
from hetero_la.pictures.runs.recording import Recording
from hetero_la.pictures.runs.tile_states import DONE, TileStates, legend
from hetero_la.pictures.runs.tracks import bounds
from hetero_la.tiles.arrays.counted import in_seconds

_WIDTH, _HEIGHT = 960, 500
_MAP = (16, 62, 380)  # left edge, upper edge and largest side of the matrix
_TIMES = (476, 62, 944, 442)  # of the timeline: left, upper, right and lower edge
_FRAMES, _EACH, _LAST = 160, 50, 2500  # number of frames; milliseconds of each, and of the last
_CURSOR = (0xB3, 0x00, 0x1B)


def animation(run: Recording) -> bytes:
    """Return a GIF of a run, of about ten seconds.

    Raises
    ------
    ValueError
        If Pillow or Matplotlib is missing.

    Examples
    --------
    >>> import hetero_la
    >>> run = hetero_la.plan("lu", (300, 300), nb=100).predicted_recording()
    >>> animation(run)[:6]
    b'GIF89a'
    """
    base, states = _background(run), TileStates(run)
    times = [*np.linspace(0.0, run.seconds, _FRAMES - 1).tolist(), np.inf]  # when all is finished
    frames = [_frame(base, run, states, time) for time in times]
    return gif(frames, [_EACH] * (_FRAMES - 1) + [_LAST])


def _pen(image: Any) -> Any:
    pen = pillow("ImageDraw").Draw(image)
    pen.font = font(11)
    return pen


def _x(run: Recording, time: float) -> float:
    left, _, right, _ = _TIMES
    return left + time / max(run.seconds, 1e-30) * (right - left)


def _background(run: Recording) -> Any:
    """Draw what is the same in all frames: the heading, the timeline and the legend."""
    image = pillow().new("RGB", (_WIDTH, _HEIGHT), PAPER)
    pen = _pen(image)
    pen.text((16, 8), run.title, INK, font=font(15))
    pen.text((16, 34), run.summary, MUTED)
    _draw_rows(pen, run)
    limits = bounds(run)
    for number, (name, time) in enumerate(
        (("work / workers", limits.work), ("critical path", limits.path))
    ):
        x, y = _x(run, time), _TIMES[3] + 4 + 15 * number
        pen.line((x, _TIMES[1], x, y), INK)
        before = x > (_TIMES[0] + _TIMES[2]) / 2
        text = f"{name} {in_seconds(time)}"
        pen.text((x - 4 if before else x + 4, y), text, INK, anchor="ra" if before else "la")
    x = 16.0
    for name, colour in [*legend(run), ("finished", DONE)]:
        pen.rectangle((x, _HEIGHT - 19, x + 10, _HEIGHT - 9), colour, MUTED)
        pen.text((x + 15, _HEIGHT - 21), name, INK)
        x += 15 + pen.textlength(name) + 14
    return image


def _draw_rows(pen: Any, run: Recording) -> None:
    """Draw a row for each worker, its queues side by side in it."""
    left, top, right, bottom = _TIMES
    high = min((bottom - top) / max(len(run.workers), 1), 90.0)
    for worker, name in enumerate(run.workers):
        y = top + worker * high
        if high >= 12:
            while pen.textlength(name) > left - 6 - (_MAP[0] + _MAP[2] + 6):
                name = "…" + name[2:]  # the ends of names differ
            pen.text((left - 6, y + high / 2), name, INK, anchor="rm")
        pen.line((left, y + high, right, y + high), GRID)
        instructions = run.programs[worker].instructions
        queues = sorted({i.queue for i in instructions})
        each = 0.9 * high / max(len(queues), 1)
        for i, (start, stop) in zip(instructions, run.spans[worker].tolist(), strict=True):
            upper = y + queues.index(i.queue) * each
            x = _x(run, start), max(_x(run, stop) - 1, _x(run, start))
            pen.rectangle((x[0], upper, x[1], max(upper + each - 2, upper)), family(i.name).colour)


def _frame(base: Any, run: Recording, states: TileStates, time: float) -> np.ndarray:
    image = base.copy()
    layout = run.graph.layout
    left, top, side = _MAP
    scale = side / max(layout.m, layout.width, 1)
    colours = states.colours(time, max(run.seconds / 60, 1e-30))
    rows = _tile_of_pixels([layout.row(i) for i in range(layout.mt)], layout.m, scale)
    firsts = [layout.columns(j)[0] for j in range(colours.shape[1])]
    columns = _tile_of_pixels(firsts, layout.width, scale)
    if len(rows) and len(columns):
        image.paste(pillow().fromarray(colours[rows][:, columns]), (left, top))
    pen = _pen(image)
    pen.rectangle((left - 1, top - 1, left + len(columns), top + len(rows)), None, MUTED)
    time = min(time, run.seconds)
    x = _x(run, time)
    pen.line((x, _TIMES[1] - 6, x, _TIMES[3]), _CURSOR, 2)
    said = f"{in_seconds(time)} of {in_seconds(run.seconds)}" if time else "0"
    pen.text((_TIMES[0], 40), said, INK)
    return np.asarray(image)


def _tile_of_pixels(firsts: list[int], size: int, scale: float) -> np.ndarray:
    """Return the tile of each pixel along a side, from the first element of each tile."""
    middles = (np.arange(max(round(size * scale), min(size, 1))) + 0.5) / scale
    return np.searchsorted(firsts, middles, side="right") - 1
