"""Measured rates: exact where measured, sensible in between and beyond."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from hetero_la.scheduler.machine.device import CORE
from hetero_la.scheduler.machine.rate_tables import (
    KernelRates,
    RateTable,
    case_shapes,
    measurable,
    size_names,
    work,
)
from hetero_la.tiles.kernels.spec import SPECS
from tests.machine import RATE, table


def varied(kind: str, axes: tuple[tuple[int, ...], ...]) -> RateTable:
    seconds = [1e-6 * (1 + at) for at in range(math.prod(map(len, axes)))]
    return RateTable(kind, axes, tuple(seconds), (0.0,) * len(seconds))


@pytest.mark.parametrize("kind", sorted(measurable()))
def test_a_table_says_what_was_measured_where_it_was(kind: str) -> None:
    axes = tuple((64, 96, 200) for _ in size_names(kind))
    measured = varied(kind, axes)
    for sizes, seconds in zip(measured.points(), measured.seconds, strict=True):
        assert measured.estimate(sizes) == pytest.approx(seconds)


@pytest.mark.parametrize("kind", sorted(measurable()))
def test_the_sizes_of_a_kernel_are_found_in_its_shapes(kind: str) -> None:
    sizes = tuple(range(300, 300 - len(size_names(kind)), -1))
    found = SPECS[kind].sizes(case_shapes(kind, sizes))
    named = dict(zip(size_names(kind), sizes, strict=True))
    expected = {name: named.get(name, named.get("w")) for name in found}  # of herk, m = n = w
    assert found == expected


def test_rates_are_interpolated_and_hold_beyond_the_grid() -> None:
    measured = RateTable("gemm", ((100, 400), (64,), (64,)), (1.0, 8.0), (0.0, 0.0))
    rates = [work("gemm", (m, 64, 64)) / measured.estimate((m, 64, 64)) for m in (100, 200, 400)]
    assert rates[1] == pytest.approx(math.sqrt(rates[0] * rates[2]))
    assert measured.estimate((1600, 64, 64)) == pytest.approx(4 * 8.0)
    assert measured.estimate((10, 64, 64)) == pytest.approx(0.1)
    assert measured.estimate((0, 64, 64)) == 0


@pytest.mark.parametrize(
    ("kind", "shapes", "sizes"),
    [
        ("gemm", [(300, 64), (64, 80), (300, 80)], (300, 64, 80)),
        ("gemm", [(300, 64), (500, 80), (300, 80)], (300, 64, 80)),
        ("gemm_nc", [(300, 64), (80, 64), (300, 80)], (300, 64, 80)),
        ("gemm_cn", [(64, 300), (64, 80), (300, 80)], (300, 64, 80)),
    ],
)
def test_products_in_all_forms_take_as_long(
    kind: str, shapes: list[tuple[int, int]], sizes: tuple[int, int, int]
) -> None:
    measured = varied("gemm", ((64, 512), (32, 128), (64, 96, 512)))
    assert KernelRates((measured,)).estimate(kind, shapes) == measured.estimate(sizes)


def test_herk_is_its_triangle_and_the_product_below() -> None:
    triangle = RateTable("herk", ((64,), (100,)), (work("herk", (64, 100)) / RATE,), (0.0,))
    shapes = [(300, 64), (300, 100)]
    assert KernelRates((triangle,)).estimate("herk", shapes) is None
    both = KernelRates((triangle, table("gemm")))
    assert both.estimate("herk", shapes) == pytest.approx(
        SPECS["herk"].flops([(100, 64), (100, 100)]) / RATE + 2 * 200 * 64 * 100 / RATE
    )
    alone = both.estimate("herk", [(100, 64), (100, 100)])
    assert alone == pytest.approx(triangle.seconds[0])


def test_a_measured_device_says_what_was_measured_in_any_type() -> None:
    device = replace(CORE, rates=KernelRates((table("gemm"), varied("laswp", ((64,), (64,))))))
    shapes = [(512, 128), (128, 512), (512, 512)]
    seconds = 2 * 512 * 128 * 512 / RATE
    assert device.kernel_seconds("gemm", shapes, "f8") == pytest.approx(seconds)
    assert device.kernel_seconds("gemm", shapes, "c16") == pytest.approx(4 * seconds)
    assert device.kernel_seconds("laswp", [(6400,), (6400, 64)], "f4") == pytest.approx(5e-5)
    assert device.kernel_seconds("gemm", [(1, 1), (1, 1), (1, 1)], "f8") == CORE.call_seconds
    # What was not measured has its formula.
    panel = [(4096, 256), (256,), (1,)]
    assert device.kernel_seconds("getrf", panel, "f8") == CORE.kernel_seconds("getrf", panel, "f8")
    assert pickle.loads(pickle.dumps(device)) == device


def test_kernels_that_are_like_others_exist() -> None:
    assert {spec.timed_as for spec in SPECS.values() if spec.timed_as != spec.name} <= set(
        measurable()
    )


@pytest.mark.parametrize(
    ("kind", "axes", "seconds", "sentence"),
    [
        ("potrf", ((64, 128),), (1.0,), "for each point of its grid (2 for 1 sizes), not 1"),
        ("gemm", ((64,), (64,)), (1.0,), "for each point of its grid"),
        ("nonsense", ((64,),), (1.0,), "for each point of its grid"),
        ("potrf", ((128, 64),), (1.0, 1.0), "positive and ascending"),
        ("potrf", ((0, 64),), (1.0, 1.0), "positive and ascending"),
        ("potrf", ((64,),), (0.0,), "the times of potrf must be positive"),
        ("potrf", ((64,),), (np.nan,), "the times of potrf must be positive"),
    ],
)
def test_tables_that_cannot_be_are_refused(
    kind: str, axes: tuple[tuple[int, ...], ...], seconds: tuple[float, ...], sentence: str
) -> None:
    with pytest.raises(ValueError) as caught:
        RateTable(kind, axes, seconds, (0.0,) * len(seconds))
    assert sentence in str(caught.value)
