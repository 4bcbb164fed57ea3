"""A table for which threads of a run wait: every wait has an end."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from hetero_la.scheduler.exchange.wait_table import WaitTable
from hetero_la.tiles.arrays.errors import RunAbortedError


def test_a_value_that_never_comes_is_given_up() -> None:
    table = WaitTable(patience=0.05)
    with pytest.raises(RunAbortedError, match="for panel 0 without any progress"):
        table.get("panel 0")


@pytest.mark.parametrize(
    "proceed", [lambda table: table.put("panel 1", 1), WaitTable.note_progress],
    ids=["a value", "a note"],
)  # fmt: skip
def test_a_wait_goes_on_while_there_is_progress(proceed: Callable[[WaitTable], None]) -> None:
    table = WaitTable(patience=1.0)
    time.sleep(1.05)
    proceed(table)
    assert not table.wait("panel 0", at_most=0.02)


def test_a_wait_of_limited_length_ends_without_the_value() -> None:
    table = WaitTable()
    began = time.monotonic()
    assert not table.wait("panel 0", at_most=0.05)
    assert time.monotonic() - began >= 0.05
    table.put("panel 0", 1)
    assert table.wait("panel 0", at_most=0.0)


def test_the_first_error_is_kept_and_ends_every_wait() -> None:
    table, first = WaitTable(), ArithmeticError("first")
    table.abort(first)
    table.abort(ArithmeticError("second"))
    with pytest.raises(RunAbortedError, match="another worker of this run has failed") as caught:
        table.get("panel 0")
    assert caught.value.__cause__ is first
