from __future__ import annotations

from collections.abc import Iterator

import pytest
import scipy.linalg  # noqa: F401  (its BLAS is to be loaded before the limit is set)
from threadpoolctl import threadpool_limits


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    from hetero_la.tiles.arrays.transfer import gpu_count

    if gpu_count() == 0:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
