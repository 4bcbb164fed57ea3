"""What threads of a run give each other: every wait has an end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from hetero_la.scheduler.exchange.table import Exchange
from hetero_la.tiles.arrays.errors import RunAbortedError


def test_a_value_that_never_comes_is_given_up() -> None:
    exchange = Exchange(patience=0.05)
    with pytest.raises(RunAbortedError, match="for panel 0 without any progress"):
        exchange.get("panel 0")


@pytest.mark.parametrize(
    "proceed", [lambda exchange: exchange.put("panel 1", 1), Exchange.note_progress],
    ids=["a value", "a note"],
)  # fmt: skip
def test_a_wait_goes_on_while_there_is_progress(proceed: Callable[[Exchange], None]) -> None:
    exchange = Exchange(patience=1.0)
    time.sleep(1.05)
    proceed(exchange)
    assert not exchange.wait("panel 0", at_most=0.02)


def test_a_wait_of_limited_length_ends_without_the_value() -> None:
    exchange = Exchange()
    began = time.monotonic()
    assert not exchange.wait("panel 0", at_most=0.05)
    assert time.monotonic() - began >= 0.05
    exchange.put("panel 0", 1)
    assert exchange.wait("panel 0", at_most=0.0)


def test_the_first_error_is_kept_and_ends_every_wait() -> None:
    exchange, first = Exchange(), ArithmeticError("first")
    exchange.abort(first)
    exchange.abort(ArithmeticError("second"))
    with pytest.raises(RunAbortedError, match="another worker of this run has failed") as caught:
        exchange.get("panel 0")
    assert caught.value.__cause__ is first
