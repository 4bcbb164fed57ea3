"""Seconds of the contenders, which take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hetero_la.bench.contenders import Call, on_device, on_host, random_problem
from hetero_la.tiles.kernels.cpu.device import available_memory

OURS = "hetero_la"
_SHORT = 0.02  #: seconds for which a call is repeated in each series
_LONG, _HOPELESS = 0.2, 5.0  #: one that takes longer, and so many times the shortest, gives up
_SERIES = 5
_ARRAYS = 12  #: of n x n elements that the contenders may need at a time
#: seconds at most for which the threads of a BLAS look for more work; they slow those that copy to
#: a GPU
_LOOKING = 0.3
_LOOK_INTERVAL = 0.005
#: times the entries, and the work, from one order to the next, of twice as many columns
_SQUARED, _CUBED = 4.0, 8.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contender took for one function.

    Parameters
    ----------
    where : str
        Where its arrays are: ``"host"`` or ``"device"``.
    function : str
        Name of the function.
    n : int
        Columns of the matrix.
    who : str
        Name of the contender.
    seconds : tuple of float
        Seconds of a call, in each series.
    """

    where: str
    function: str
    n: int
    who: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.seconds)


def take_turns(
    contenders: Mapping[str, Call], series: int, report: Callable[[str], None], rest: float = 0.0
) -> dict[str, list[float]]:
    """Measure the seconds of a call, in series in each of which every contender has its turn.

    A contender that fails, as for want of memory, is reported and left out.  Each turn begins when
    no thread computes any more, or after a `rest` of so many seconds.

    Examples
    --------
    >>> {who: len(found) for who, found in take_turns({"a": int, "b": list}, 3, print).items()}
    {'a': 3, 'b': 3}
    """
    calls: dict[str, int] = {}
    seconds: dict[str, list[float]] = {}
    for name, run in contenders.items():
        try:
            run()
        except Exception as error:  # whatever a library raises where it cannot
            report(f"{name}: {error}")
            continue
        began = time.perf_counter()
        run()
        calls[name] = max(int(_SHORT / max(time.perf_counter() - began, 1e-9)), 1)
        seconds[name] = []
    for _ in range(series):
        for name in calls:
            _let_threads_rest(rest)
            began = time.perf_counter()
            for _ in range(calls[name]):
                contenders[name]()
            seconds[name].append((time.perf_counter() - began) / calls[name])
    return seconds


def _let_threads_rest(at_most: float) -> None:
    """Wait until no thread of this process computes, but no longer than so many seconds."""
    until = time.perf_counter() + at_most
    while time.perf_counter() < until:
        used = time.process_time()
        time.sleep(_LOOK_INTERVAL)
        if time.process_time() - used < _LOOK_INTERVAL / 2:
            return


class Contest:
    """Measurements of one function, at one order after the other.

    Those who fail, or take far longer than the shortest, are left out at the orders that follow.
    `contenders` returns the contenders for an order; `rest` is as for `take_turns`.
    """

    def __init__(
        self, where: str, function: str, contenders: Callable[[int], Mapping[str, Call]],
        report: Callable[[str], None] = lambda said: None, rest: float = 0.0,
    ) -> None:  # fmt: skip
        self.where, self.function = where, function
        self._contenders, self._report, self._rest = contenders, report, rest
        self._left_out: set[str] = set()
        self.next_seconds = 0.0  #: what the next order is expected to take, of twice the columns

    def measure(self, n: int, series: int = _SERIES) -> list[Measured]:
        """Measure all contenders at an order."""
        began = time.perf_counter()
        all_of_them = self._contenders(n)
        made = time.perf_counter()
        invited = {who: run for who, run in all_of_them.items() if who not in self._left_out}
        taken = take_turns(invited, series, self._report, self._rest)
        rows = [
            Measured(self.where, self.function, n, who, tuple(found))
            for who, found in taken.items()
        ]
        slow = max(_HOPELESS * min((row.median for row in rows), default=0.0), _LONG)
        self._left_out |= {row.who for row in rows if row.median > slow} - {OURS}
        self._left_out |= all_of_them.keys() - taken.keys()
        staying = [row.median for row in rows if row.who not in self._left_out]
        calls = sum(max(_CUBED * median, _SHORT) for median in staying)
        computed = sum(max(row.median, _SHORT) for row in rows)
        # Besides calls there are rests, and what is loaded or compiled at the first one.
        others = time.perf_counter() - made - series * computed
        self.next_seconds = _SQUARED * (made - began) + max(others, 0.0) + (series + 2) * calls
        return rows


def contest(
    where: str, function: str, gpu: bool, report: Callable[[str], None] = lambda said: None
) -> Contest:
    """Return the measurements of a function with arrays on the host, or on a GPU.

    Examples
    --------
    >>> [row.who for row in contest("host", "solve", gpu=False).measure(8, series=1)]
    ['SciPy', 'hetero_la']
    """

    def contenders(n: int) -> Mapping[str, Call]:
        m, b = random_problem(function, n)
        return on_host(function, m, b, gpu) if where == "host" else on_device(function, m, b)

    rest = _LOOKING if gpu and where == "host" else 0.0
    return Contest(where, function, contenders, report, rest)


def measure_for(
    seconds: float, functions: Sequence[str], places: Sequence[str], gpu: bool,
    report: Callable[[str], None], first: int,
) -> Iterator[list[Measured]]:  # fmt: skip
    """Measure functions at orders from `first` on, each twice the last, as far as time allows.

    Arrays are on the host or on a device, as `places` say.  Yields the rows of a function at an
    order.
    """
    deadline = time.perf_counter() + seconds
    running = [contest(where, function, gpu, report) for where in places for function in functions]
    n = first
    while running:
        for one in list(running):
            late = time.perf_counter() + one.next_seconds > deadline
            if late or _ARRAYS * 8 * n * n > available_memory():
                running.remove(one)
                continue
            report(f"{one.function}, n = {n}")
            rows = one.measure(n)
            yield rows
            if not any(row.who == OURS for row in rows):
                running.remove(one)
        n *= 2


def speed_up(rows: Sequence[Measured]) -> float | None:
    """Return how many times as fast as the best other one we are; None without either.

    Examples
    --------
    >>> rows = [Measured("host", "qr", 9, who, (s,)) for who, s in (("SciPy", 3.0), (OURS, 2.0))]
    >>> speed_up(rows), speed_up(rows[:1])
    (1.5, None)
    """
    ours = [row.median for row in rows if row.who == OURS]
    others = [row.median for row in rows if row.who != OURS]
    return min(others) / ours[0] if ours and others else None
