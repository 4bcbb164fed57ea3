"""Signatures: options by name and by type, arrays by kind; what `dir` and `help` show."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import hetero_la
from hetero_la.api import lstsq, structure
from hetero_la.api.lstsq import require_driver
from hetero_la.checks.array_types import HostArray
from hetero_la.in_files.factor_file import FileOptions
from hetero_la.planning.options import Options, RunOptions

HERE = Path(__file__).parent
PUBLIC = {name: getattr(hetero_la, name) for name in hetero_la.__all__}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
METHODS = {
    f"{name}.{method}": getattr(value, "fget", getattr(value, "__func__", value))
    for name, cls in PUBLIC.items()
    for base in getattr(cls, "__mro__", ())
    if base.__module__.startswith("hetero_la")
    for method, value in vars(base).items()
    if not method.startswith("_") and isinstance(value, FunctionType | property | classmethod)
}
TRUE_ANY = {
    ("qr", "return"),  # what `mode` and `pivoting` make of any array
    ("Cluster.close", "return"),  # as Dask's
    # What a user gave, before it is looked at.
    ("Options.choose", "given"), ("Options.choose", "preset"),
}  # fmt: skip


@pytest.mark.exhaustive
def test_mypy_knows_what_goes_in_and_what_comes_out() -> None:
    pytest.importorskip("mypy")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", str(HERE / "typed_calls.py")],
        cwd=HERE.parent, capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_run_options_are_the_fields_of_options() -> None:
    fields = {name: hint | None for name, hint in get_type_hints(Options).items()}
    assert get_type_hints(RunOptions) == fields
    assert not RunOptions.__required_keys__
    assert get_type_hints(FileOptions).items() <= fields.items()
    assert not FileOptions.__required_keys__


def signatures(function: Callable[..., Any]) -> Sequence[Callable[..., Any]]:
    """The overloads of a function, or else itself."""
    function = inspect.unwrap(function)
    return typing.get_overloads(function) or [function]


@pytest.mark.parametrize("name", FUNCTIONS | METHODS)
def test_signatures_are_typed(name: str) -> None:
    for function in signatures((FUNCTIONS | METHODS)[name]):
        hints = get_type_hints(function)
        assert hints.keys() == {*inspect.signature(function).parameters, "return"} - {"self", "cls"}
        kinds = RunOptions, FileOptions
        assert hints.get("options") in (None, *(typing.Unpack[kind] for kind in kinds))
        for argument, text in function.__annotations__.items():
            untyped = re.search(r"\bAny\b", text.replace("np.dtype[Any]", ""))
            assert not untyped or (name, argument) in TRUE_ANY, argument


@pytest.mark.parametrize("name", FUNCTIONS)
def test_overloads_have_the_parameters_of_what_runs(name: str) -> None:
    runs = inspect.signature(FUNCTIONS[name]).parameters
    for function in signatures(FUNCTIONS[name]):
        parameters = inspect.signature(function).parameters
        assert list(parameters) == list(runs)
        for parameter in parameters.values():
            default = runs[parameter.name].default
            assert parameter.default in (default, ..., inspect.Parameter.empty), parameter


def test_names_that_an_argument_may_have_are_those_that_are_taken() -> None:
    def names(hint: Any) -> set[str]:
        parts = (names(part) if get_args(part) else {part} for part in get_args(hint))
        return set().union(*parts) - {type(None)}

    assert names(structure.SolveAssumption) == {str(name) for name in structure.SOLVE_NAMES}
    assert names(structure.InvAssumption) == set(structure.INV_NAMES)
    assert {require_driver(name) for name in names(lstsq.Driver)} == names(lstsq.Driver)


def test_dir_shows_the_public_names_only() -> None:
    assert dir(hetero_la) == sorted([*hetero_la.__all__, "__version__"])
    assert all(hasattr(hetero_la, name) for name in dir(hetero_la))


def test_the_package_says_what_there_is() -> None:
    text = inspect.getdoc(hetero_la) or ""
    assert [name for name in hetero_la.__all__ if f"`{name}`" not in text] == []
    assert "``hetero-la``" in text
    assert "``docs/index.md``" in text


def test_factors_remain_tuples_that_travel() -> None:
    factors = hetero_la.lu_factor(np.eye(3))
    assert isinstance(factors, hetero_la.LUFactors)
    assert isinstance(factors, tuple)
    assert hetero_la.LUFactors[HostArray]
