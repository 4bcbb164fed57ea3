"""What the tests of the command line share."""

from __future__ import annotations

import importlib.util
import os
import re
import types
from pathlib import Path

import numpy as np
import pytest

from hetero_la.cli.main import main
from hetero_la.io.files import write_matrix
from hetero_la.testing.matrices import generate

HEADINGS = [
    "routine", "dtype", "kind", "m", "n", "nrhs", "nb", "look-ahead", "workers", "time",
    "rate", "ref time", "ratio", "status",
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(text: str) -> list[dict[str, str]]:
    """Rows of printed output by heading; columns are at least two blanks apart."""
    head, *lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def refused(capfd: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one sentence with which `argv` is refused, with nothing half written."""
    before = sorted(os.listdir())
    assert main(argv) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("hetero-la: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before
    return err.removeprefix("hetero-la: ").strip()


def prepared() -> None:
    write_matrix("square.npy", generate("rand", 6))
    write_matrix("tall.npy", generate("rand", 6, 4))
    write_matrix("vector.npy", np.ones(5))
    write_matrix("stack.npy", np.ones((2, 3, 3)))
    write_matrix("complex.npy", generate("rand", 6, dtype="complex128"))
    write_matrix("half.npy", np.ones((4, 4), np.float16))
    write_matrix("two.npz", {"a": np.eye(3), "b": np.ones(3)})
    write_matrix("nan.npy", np.where(np.eye(6) == 1, np.nan, 1.0))
    write_matrix("inf.npy", np.where(np.eye(6) == 1, np.inf, 1.0))
    Path("text.npy").write_text("1 2 3\n")
    Path("folder").mkdir()
    with open("lies.npy", "wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**7, 10**7)}
        np.lib.format.write_array_header_1_0(file, header)
    if (zarr := _optional("zarr")) is not None:
        zarr.save_array("bare.zarr", np.eye(3))
        write_matrix("group.zarr", np.eye(3))


def _optional(name: str) -> types.ModuleType | None:
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
