"""Threads that enqueue take turns, the most urgent first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from hetero_la.scheduler.turns import Turns


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waiting(turns: Turns, count: int) -> None:
    """Return once `count` threads wait."""
    until = time.monotonic() + 10
    while len(turns._waiting) < count:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_the_most_urgent_goes_first() -> None:
    turns, order = Turns(), []

    def work(urgency: int) -> None:
        with turns.taken(urgency):
            order.append(urgency)

    threads = []
    with turns.taken(0):
        for n, urgency in enumerate([5, 1, 3, 1, 4]):
            threads.append(started(lambda urgency=urgency: work(urgency)))  # type: ignore[misc]
            waiting(turns, n + 1)
    for thread in threads:
        thread.join(10)
    assert order == [1, 1, 3, 4, 5]


@pytest.mark.parametrize(("next_", "expected"), [(2, ["other", "mine"]), (1, ["mine", "other"])])
def test_a_turn_is_offered_to_what_is_more_urgent(next_: int, expected: list[str]) -> None:
    turns, order = Turns(), []

    def other() -> None:
        with turns.taken(1):
            order.append("other")

    with turns.taken(0):
        thread = started(other)
        waiting(turns, 1)
        turns.offer(next_)
        order.append("mine")
    thread.join(10)
    assert order == expected


def test_a_turn_that_is_left_is_taken_again_whatever_happens() -> None:
    turns, others = Turns(), []

    def other() -> None:
        with turns.taken(9):
            others.append(turns._held)

    def waits_in_vain() -> None:
        thread = started(other)
        thread.join(10)
        assert not thread.is_alive()
        raise TimeoutError

    with turns.taken(0):
        with pytest.raises(TimeoutError), turns.left(0):
            waits_in_vain()
        assert turns._held
    assert others == [True]
    assert not turns._held


def test_one_at_a_time() -> None:
    turns, inside, most = Turns(), [0], [0]

    def work(seed: int) -> None:
        with turns.taken(seed):
            for n in range(200):
                turns.offer((seed * 7 + n * 13) % 11)
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
