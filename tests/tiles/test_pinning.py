"""Memory pinned for the time of a run."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero_la.execution import execute
from hetero_la.tiles.arrays.transfer import is_pinned
from hetero_la.tiles.storage import pinning
from hetero_la.tiles.storage.pinning import pinned


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(3000, 700), (1, 3000), (70000, 1), (511, 513)])
def test_each_page_of_new_memory_is_written_to(shape: tuple[int, int], dtype: str) -> None:
    new = np.ones(shape, dtype, order="F")
    pinning._touch(new)
    assert ((new == 0) | (new == 1)).all()
    elements = new.reshape(-1, order="F")
    page = 4096 // new.itemsize
    whole = elements[: len(elements) // page * page].reshape(-1, page)
    assert (whole == 0).any(axis=1).all()


def test_a_run_pins_its_arrays_if_its_plan_does(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, new = np.ones((3, 3)), np.ones((3, 1)), np.ones((3, 4))
    asked: list[Any] = []

    def noted(arrays: Any, fresh: Any) -> contextlib.AbstractContextManager[None]:
        asked.append((list(map(id, arrays)), list(map(id, fresh))))
        return contextlib.nullcontext()

    monkeypatch.setattr(execute, "pinned", noted)
    for pins in (False, True):
        plan: Any = SimpleNamespace(pins=pins)
        for given in ((a, None, a), (a, b, new), (a, None, new)):
            with execute._pinned(plan, *given):
                pass
    assert asked == [([id(a)], []), ([id(a), id(b)], [id(new)]), ([id(a)], [id(new)])]


@pytest.mark.gpu
def test_memory_is_pinned_until_the_block_ends() -> None:
    a, new = np.ones((1000, 300)), np.empty((5000, 40), order="F")
    with pinned([a], fresh=[new]):
        assert is_pinned(a)
        assert is_pinned(new)
        assert is_pinned(a[500:, 7:])
    assert not is_pinned(a)
    assert not is_pinned(new)
    assert (a == 1).all()


@pytest.mark.gpu
def test_what_cannot_be_pinned_is_left_as_it_is() -> None:
    import cupy

    a = np.ones((2000, 500), order="F")
    with pinned([a[:3]]):
        assert not is_pinned(a[:3])  # far more would be pinned than is asked for
    with pinned([a]), pinned([a[:, 100:]]):  # the driver refuses a part of it
        assert is_pinned(a)
        there = cupy.asarray(a)
        assert (there == 1).all()
    assert not is_pinned(a)


@pytest.mark.gpu
def test_memory_is_pinned_until_the_last_run_ends() -> None:
    a = np.ones((2000, 500), order="F")
    with pinned([a]):
        with pinned([a]):
            assert is_pinned(a)
        assert is_pinned(a)
        half = np.lib.stride_tricks.as_strided(a, (2000, 100))
        assert is_pinned(half)
    assert not is_pinned(a)
