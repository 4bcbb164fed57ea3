from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (its BLAS is to be loaded before the limit is set)
from distributed.utils import get_mp_context
from threadpoolctl import threadpool_limits

METHOD = "distributed.worker.multiprocessing-method"


@pytest.fixture(autouse=True, scope="session")
def _workers_are_forked() -> Iterator[None]:
    """Worker processes come from one that has imported all, and start at once.

    Each would import for more than a second instead.  The environment may say otherwise, as
    DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD=spawn.
    """
    if "DASK_" + METHOD.upper().replace(".", "__").replace("-", "_") in os.environ:
        yield
        return
    with dask.config.set({METHOD: "forkserver"}):
        context: Any = get_mp_context()  # its first call sets what they begin with, without these
        context.set_forkserver_preload(["distributed", "hetero_la.dask_arrays"])
        yield


@pytest.fixture(autouse=True, scope="module")
def _one_blas_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small products on many threads, which wait for each other, take several times as long.

    The tests of clusters look at the number of threads themselves.
    """
    if request.module.__name__.endswith("test_cluster"):
        yield
        return
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the user's profile says of this machine must not decide what tests see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETERO_LA_PROFILE", str(tmp_path_factory.mktemp("profile") / "none.json"))
        yield


#: Where the tests marked `unit` are: those of these files and folders that are not marked as slow,
#: exhaustive or gpu, and use no fixture of `_NOT_UNIT`.
_UNIT = (
    "scheduler/test_analysis.py", "scheduler/test_costs.py",
    "scheduler/test_graph.py", "scheduler/test_mixed_owners.py",
    "scheduler/test_overlap_probe.py", "scheduler/test_programs.py",
    "scheduler/test_rates.py", "scheduler/test_routines.py", "scheduler/test_simulate.py",
    "scheduler/test_wait_table.py", "test_matrices.py",
    "test_numerics.py", "test_stacks.py", "test_structure.py",
    "tiles/test_layout.py",
)  # fmt: skip
_NOT_UNIT = {"client", "cluster", "on_cluster", "processes", "hybrid", "tmp_path"}


def pytest_configure(config: pytest.Config) -> None:
    """With `-m unit`, let tests fail that start a process, or what clusters consist of."""
    if config.getoption("markexpr") == "unit":
        sys.addaudithook(_refuse_processes_and_sockets)


def _refuse_processes_and_sockets(event: str, _: tuple[object, ...]) -> None:
    if event in ("os.fork", "os.posix_spawn", "socket.__new__"):
        raise AssertionError(f"a test marked as unit needs neither process nor cluster: {event}")


def pytest_sessionfinish() -> None:
    """Write which lines have run: pytest-xdist kills processes that take long to end."""
    coverage = sys.modules.get("coverage")  # only where lines are counted
    if coverage and (counted := coverage.Coverage.current()):
        counted.stop()
        counted.save()


def pytest_xdist_auto_num_workers() -> int:
    """Share the tests between three processes, unless they look at the memory of one GPU.

    Many tests wait for a process or a limit of time: three keep two cores busy.
    """
    from hetero_la.tiles.arrays.transfer import gpu_count

    return 0 if gpu_count() else 3


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a test by its values, where pytest would count them: `[(3, 4)]`, not `[shape0]`."""
    counted = (tuple, list, dict, set, partial, np.generic, np.ndarray, Exception)
    if isinstance(val, counted):
        return _text(val)
    return None


def _text(value: object) -> str:
    if isinstance(value, partial):
        return _text(value.func)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    name = getattr(value, "name", getattr(value, "__name__", None))
    return str(name) if name else " ".join(repr(value).split())


def pytest_collection_finish() -> None:
    """Let no garbage collection look through the tests themselves, as many of the tests collect."""
    gc.collect()
    gc.freeze()


_TESTS = Path(__file__).parent


def _is_unit(item: pytest.Item) -> bool:
    if not item.path.is_relative_to(_TESTS):  # an example in a docstring
        return False
    path = item.path.relative_to(_TESTS).as_posix()
    return (
        path.startswith(_UNIT)
        and not any(map(item.get_closest_marker, ("slow", "exhaustive", "gpu")))
        and _NOT_UNIT.isdisjoint(getattr(item, "fixturenames", ()))
    )


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in filter(_is_unit, items):
        item.add_marker(pytest.mark.unit)
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    from hetero_la.tiles.arrays.transfer import gpu_count

    if gpu_count() == 0:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
