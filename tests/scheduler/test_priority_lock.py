"""A lock that goes to the most urgent thread that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from hetero_la.scheduler.exchange.enqueuer import PriorityLock


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waiting(lock: PriorityLock, count: int) -> None:
    """Return once `count` threads wait."""
    until = time.monotonic() + 10
    while len(lock._waiting) < count:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_the_most_urgent_goes_first() -> None:
    lock, order = PriorityLock(), []

    def work(urgency: int) -> None:
        with lock.held(urgency):
            order.append(urgency)

    threads = []
    with lock.held(0):
        for n, urgency in enumerate([5, 1, 3, 1, 4]):
            threads.append(started(lambda urgency=urgency: work(urgency)))  # type: ignore[misc]
            waiting(lock, n + 1)
    for thread in threads:
        thread.join(10)
    assert order == [1, 1, 3, 4, 5]


@pytest.mark.parametrize(("next_", "expected"), [(2, ["other", "mine"]), (1, ["mine", "other"])])
def test_the_lock_is_yielded_to_what_is_more_urgent(next_: int, expected: list[str]) -> None:
    lock, order = PriorityLock(), []

    def other() -> None:
        with lock.held(1):
            order.append("other")

    with lock.held(0):
        thread = started(other)
        waiting(lock, 1)
        lock.yield_to(next_)
        order.append("mine")
    thread.join(10)
    assert order == expected


def test_a_lock_that_is_released_for_a_wait_is_acquired_again_whatever_happens() -> None:
    lock, others = PriorityLock(), []

    def other() -> None:
        with lock.held(9):
            others.append(lock._held)

    def waits_in_vain() -> None:
        thread = started(other)
        thread.join(10)
        assert not thread.is_alive()
        raise TimeoutError

    with lock.held(0):
        with pytest.raises(TimeoutError), lock.released(0):
            waits_in_vain()
        assert lock._held
    assert others == [True]
    assert not lock._held


def test_one_thread_at_a_time_has_the_turn() -> None:
    lock, inside, most = PriorityLock(), [0], [0]

    def work(seed: int) -> None:
        with lock.held(seed):
            for n in range(200):
                lock.yield_to((seed * 7 + n * 13) % 11)
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                if n % 10 == 0:
                    time.sleep(0)
                inside[0] -= 1

    threads = [started(lambda seed=seed: work(seed)) for seed in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert most == [1]
