"""pytest plugin: SciPy's own tests, with our functions in the place of SciPy's.

It leaves out the tests that call none of these functions.  Those listed in docs/scipy.md have to
fail.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest
import scipy
import scipy.linalg
from packaging.specifiers import SpecifierSet

import hetero_la

NAMES = (
    "lu", "lu_factor", "lu_solve", "solve", "inv", "det", "cholesky", "cho_factor", "cho_solve",
    "qr", "lstsq",
)  # fmt: skip
LIST = Path(__file__).parents[1] / "docs" / "scipy.md"
#: With --swap-sample, as many cases of each test.
FEW = 3


class Row(NamedTuple):
    """Tests that are expected to fail: a regular expression for what follows the module's name."""

    tests: re.Pattern[str]
    versions: SpecifierSet
    reason: str


def expected_failures() -> list[Row]:
    """The rows of the table in docs/scipy.md that hold for this SciPy."""
    rows = re.findall(r"^\| `(Test.*?)` \| (.*?) \| (.*?) \|$", LIST.read_text("utf-8"), re.M)
    found = [
        Row(re.compile(tests.replace(r"\|", "|")), SpecifierSet(versions.removeprefix("all")), why)
        for tests, versions, why in rows
    ]
    return [row for row in found if scipy.__version__ in row.versions]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--swap-sample", action="store_true", help=f"at most {FEW} cases of a test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Swap the functions, and leave the tests that call one."""
    for module in {item.module for item in items}:  # type: ignore[attr-defined]
        for name in NAMES:
            if getattr(module, name, None) is getattr(scipy.linalg, name):
                setattr(module, name, getattr(hetero_la, name))
    items[:] = [item for item in items if calls_ours(item.function.__code__)]  # type: ignore[attr-defined]
    sample = config.getoption("--swap-sample")
    if sample:
        groups = itertools.groupby(items, lambda item: item.nodeid.partition("[")[0])
        items[:] = [item for _, group in groups for item in itertools.islice(group, FEW)]
    rows = expected_failures()
    matched = {row for item in items for row in mark(item, rows)}
    idle = [row.tests.pattern for row in rows if row not in matched]
    if idle and not sample:
        raise pytest.UsageError(f"{LIST.name} lists tests that there are not: {', '.join(idle)}")


def calls_ours(code: CodeType) -> bool:
    """Whether a test, or a function inside it, names one of ours."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return not set(NAMES).isdisjoint(code.co_names) or any(map(calls_ours, inner))


def mark(item: pytest.Item, rows: list[Row]) -> Iterator[Row]:
    """Expect a test to fail if a row says so: then it is an error if it passes."""
    for row in rows:
        if row.tests.fullmatch(item.nodeid.partition("::")[2]):
            item.add_marker(pytest.mark.xfail(reason=row.reason, strict=True))
            yield row
