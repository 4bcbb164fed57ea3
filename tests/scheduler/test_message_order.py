"""Messages between GPUs of several processes: one order, in which no queue waits for ever."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from hetero_la.planning.decisions import Problem
from hetero_la.planning.given import Given
from hetero_la.planning.options import Options
from hetero_la.planning.planner import make_plan
from hetero_la.scheduler.exchange.message_order import ExchangeOrder, exchange_orders
from hetero_la.scheduler.placement.workers import WorkerInfo
from hetero_la.scheduler.program.instructions import ReceiveMessage, SendMessage
from hetero_la.scheduler.program.messages import MessageKey
from hetero_la.scheduler.run.job import Job

pytestmark = pytest.mark.unit

#: Rows, columns, and columns beside the matrix.
ROUTINES = {
    "lu": (300, 300, 0), "qr": (300, 200, 0), "cholesky": (300, 300, 0), "solve": (300, 300, 100),
    "solve_positive": (300, 300, 40), "lstsq": (300, 200, 50), "explicit_q": (300, 200, 200),
    "inverse": (300, 300, 300),
}  # fmt: skip


def job_of(routine: str, workers: int, **options: object) -> Job:
    """A run over GPUs of as many processes."""
    gpus = tuple(
        WorkerInfo(f"gpu{i}", "gpu", f"tcp://host:{i}", pid=i + 1, host="host", gpu=f"0000:{i}")
        for i in range(workers)
    )
    m, n, nrhs = ROUTINES[routine]
    problem = Problem(routine, m, n, nrhs, np.dtype("float64"))
    chosen = Options.choose({"nb": 32, **options})
    return make_plan(problem, chosen, gpus, Given(True)).packed_job.job


#: What a queue does: "send" or "receive", the message, and its consumer.
Enqueued = tuple[str, MessageKey, int]


class Ends:
    """Workers whose streams are one queue each, and whose messages begin at both ends at once."""

    def __init__(self, job: Job, *, ordered: bool) -> None:
        count = len(job.programs)
        self._queues: list[deque[Enqueued]] = [deque() for _ in range(count)]
        self._gone: set[tuple[MessageKey, int]] = set()  # messages, and to whom
        self._hosts = [self._host(job, w, ordered) for w in range(count)]

    def _host(self, job: Job, w: int, ordered: bool) -> Iterator[bool]:
        """Enqueue a worker's messages; yield whether anything has happened."""
        order = ExchangeOrder(job.only(w).order, range(len(job.programs)))
        for i in job.programs[w].instructions:
            while not self._gone.issuperset(i.awaits):
                yield False
            if isinstance(i, SendMessage):
                for to in job.messages[i.message].consumers:
                    enqueue = partial(self._queues[w].append, ("send", i.message, to))
                    order.send(i.message, to, enqueue) if ordered else enqueue()
            elif isinstance(i, ReceiveMessage):
                enqueue = partial(self._queues[w].append, ("receive", i.message, w))
                order.receive(i.message, i.message.source, enqueue) if ordered else enqueue()
            yield True

    def _exchange(self) -> bool:
        """Let messages go that are first at both ends; return whether there are any."""
        for here, there in itertools.permutations(self._queues, 2):
            if here and there and there[0] == ("receive", *here[0][1:]):
                self._gone.add(here.popleft()[1:])
                there.popleft()
                return True
        return False

    def come(self) -> bool:
        """Return whether all programs and queues come to their ends."""
        over = [False] * len(self._hosts)
        moved = True
        while moved:
            moved = self._exchange()
            for w, host in enumerate(self._hosts):
                happened = next(host, None)
                moved = moved or bool(happened) or (happened is None and not over[w])
                over[w] = happened is None
        return all(over) and not any(self._queues)


@pytest.mark.parametrize("routine", ROUTINES)
@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_queues_that_the_driver_joins_come_to_their_end(
    routine: str, workers: int, lookahead: int
) -> None:
    assert Ends(job_of(routine, workers, lookahead=lookahead), ordered=True).come()


def test_without_an_order_they_would_wait_for_each_other() -> None:
    assert not Ends(job_of("explicit_q", 2), ordered=False).come()


@pytest.mark.parametrize("routine", ROUTINES)
def test_the_order_is_one_and_holds_every_message_once(routine: str) -> None:
    job = job_of(routine, 3)
    orders = exchange_orders(job.programs, job.messages)
    expected = {(key, w) for key, message in job.messages.items() for w in message.consumers}
    for w, order in enumerate(orders):
        mine = [(key, w if other == key.source else other) for key, other in order]
        assert len(mine) == len(set(mine))
        assert set(mine) == {pair for pair in expected if w in (pair[0].source, pair[1])}
        for other in set(range(3)) - {w}:
            here = [key for key, end in order if end == other]
            assert here == [key for key, end in orders[other] if end == w]


@pytest.mark.parametrize("routine", ["lu", "qr", "cholesky"])
def test_a_panel_is_sent_before_the_next_one_is_received(routine: str) -> None:
    """What is made first goes first: look-ahead stays as it is."""
    job = job_of(routine, 2)
    for w, order in enumerate(exchange_orders(job.programs, job.messages)):
        steps = [key.step for key, _ in order if key.panel or key.source != w]
        assert steps == sorted(steps)
