"""pytest plugin: SciPy's own tests, with our functions in the place of SciPy's.

It leaves out the tests that call none of these functions.  Those listed in docs/how_to/scipy.md
have to fail.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import scipy
import scipy.linalg
from packaging.specifiers import SpecifierSet

from hetero_la.stand_ins.scipy_patch import OURS, exchange

#: In the place of functions, and of the module that has them.
IN_PLACE_OF: list[tuple[Any, Any]] = [
    *((getattr(scipy.linalg, name), ours) for name, ours in OURS.items()),
    (scipy.linalg, SimpleNamespace(**{**vars(scipy.linalg), **OURS})),
]
LIST = Path(__file__).parents[1] / "docs" / "how_to" / "scipy.md"
#: With --swap-sample, as many cases of each test.
FEW = 3


class Row(NamedTuple):
    """Tests that are expected to fail: a regular expression for what follows the module's name."""

    tests: re.Pattern[str]
    versions: SpecifierSet
    reason: str


def expected_failures(page: Path) -> list[Row]:
    """The rows of a page's table that hold for this SciPy."""
    rows = re.findall(r"^\| `(Test.*?)` \| (.*?) \| (.*?) \|$", page.read_text("utf-8"), re.M)
    found = [
        Row(re.compile(tests.replace(r"\|", "|")), SpecifierSet(versions.removeprefix("all")), why)
        for tests, versions, why in rows
    ]
    return [row for row in found if scipy.__version__ in row.versions]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--swap-list", type=Path, default=LIST, help="page with the expected failures")
    parser.addoption("--swap-sample", action="store_true", help=f"at most {FEW} cases of a test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Swap the functions, and leave the tests that call one."""
    functions = [item for item in items if isinstance(item, pytest.Function)]
    exchange(IN_PLACE_OF, {item.module for item in functions})
    for item in functions:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        parameters.update({name: swapped(value) for name, value in parameters.items()})
    items[:] = [item for item in functions if calls_ours(item)]
    sample = config.getoption("--swap-sample")
    if sample:
        groups = itertools.groupby(items, lambda item: item.nodeid.partition("[")[0])
        items[:] = [item for _, group in groups for item in itertools.islice(group, FEW)]
    page = config.getoption("--swap-list")
    rows = expected_failures(page)
    matched = {row for item in items for row in mark(item, rows)}
    idle = [row.tests.pattern for row in rows if row not in matched]
    if idle and not sample:
        raise pytest.UsageError(f"{page.name} lists tests that there are not: {', '.join(idle)}")


def swapped(value: Any) -> Any:
    """What takes the place of a test's parameter, or of the entries of a tuple."""
    if type(value) is tuple:
        return tuple(map(swapped, value))
    return next((ours for theirs, ours in IN_PLACE_OF if value is theirs), value)


def calls_ours(item: pytest.Function) -> bool:
    """Whether a test is given one of ours, or names one."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    flat = (part for value in given for part in (value if isinstance(value, tuple) else (value,)))
    return any(part in OURS.values() for part in flat if callable(part)) or names_ours(
        item.function.__code__
    )


def names_ours(code: CodeType) -> bool:
    """Whether a function, or one inside it, names one of ours."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return not OURS.keys().isdisjoint(code.co_names) or any(map(names_ours, inner))


def mark(item: pytest.Item, rows: list[Row]) -> Iterator[Row]:
    """Expect a test to fail if a row says so: then it is an error if it passes."""
    for row in rows:
        if row.tests.fullmatch(item.nodeid.partition("::")[2]):
            strict = not row.reason.startswith("in part: ")
            item.add_marker(pytest.mark.xfail(reason=row.reason, strict=strict))
            yield row
