from __future__ import annotations

from collections.abc import Iterator

import pytest
import scipy.linalg  # noqa: F401  (its BLAS is to be loaded before the limit is set)
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="session")
def _one_blas_thread() -> Iterator[None]:
    """Small products on many threads, which wait for each other, take several times as long."""
    with threadpool_limits(1):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    from hetero_la.tiles.kernels.gpu import gpu_count

    if gpu_count() == 0:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
