from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    from hetero_la.tiles.kernels.gpu import gpu_count

    if gpu_count() == 0:
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
