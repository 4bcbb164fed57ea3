"""Factorizations of matrices in files, interrupted and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la.in_files.checkpoint_folder import CheckpointFolder
from hetero_la.io.files import read_matrix, write_matrix
from hetero_la.testing.residuals import cholesky_ratio, lu_ratio, qr_factors_ratio
from hetero_la.tiles.kernels.gpu.device import GpuDevice
from hetero_la.tiles.storage.file_storage import FileStorage

pytest.importorskip("h5py")
pytest.importorskip("zarr")

N, NB = 300, 20
LITTLE = 10 * N * NB * 8


def random(m: int, n: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((m, n))


def save(path: Path, a: np.ndarray) -> Path:
    write_matrix(path, a if path.suffix == ".npy" else {"a": a})
    return path


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("source", ["a.npy", "a.h5", "a.zarr"])
@pytest.mark.parametrize("target", ["f.h5", "f.zarr"])
def test_lu(tmp_path: Path, source: str, target: str, order: Any) -> None:
    a = np.asarray(random(N, N), order=order)
    given, made = save(tmp_path / source, a), tmp_path / target
    factors = hetero_la.factor_file("lu", given, made, memory=LITTLE, nb=NB)
    assert factors.report.plan.groups.count > 2
    assert factors.path == made
    assert factors.names == ("lu", "piv")
    assert repr(factors) == f"FileFactors(lu, piv in {target})"
    assert "arrays" in factors._repr_html_()
    assert lu_ratio(a, read_matrix(made, "lu"), read_matrix(made, "piv")) < 30
    assert np.array_equal(read_matrix(given), a)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([source, target])


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(N, 250), (250, N)])
def test_qr(tmp_path: Path, dtype: str, shape: tuple[int, int]) -> None:
    a = random(*shape).astype(dtype)
    made = tmp_path / "f.zarr"
    memory = 14 * N * NB * a.itemsize
    hetero_la.factor_file("qr", save(tmp_path / "a.h5", a), made, memory=memory, nb=NB, name="a")
    assert qr_factors_ratio(a, read_matrix(made, "qr"), read_matrix(made, "tau")) < 30


def test_cholesky(tmp_path: Path) -> None:
    a = random(N, N)
    a = a @ a.T + N * np.eye(N)
    given, made = save(tmp_path / "a.npy", a), tmp_path / "f.h5"
    hetero_la.factor_file("cholesky", given, made, memory=LITTLE, nb=NB)
    assert cholesky_ratio(a, read_matrix(made, "l"), lower=True) < 30
    assert not np.triu(read_matrix(made, "l"), 1).any()
    np.save(given, -a)
    with pytest.raises(np.linalg.LinAlgError, match="1-th leading minor"):
        hetero_la.factor_file("cholesky", given, made, memory=LITTLE, nb=NB)
    assert cholesky_ratio(a, read_matrix(made, "l"), lower=True) < 30  # that of before


def test_small_and_singular(tmp_path: Path) -> None:
    made = tmp_path / "f.h5"
    hetero_la.factor_file("lu", save(tmp_path / "one.npy", np.array([[4.0]])), made)
    assert read_matrix(made, "lu") == 4
    with pytest.warns(LinAlgWarning, match="Diagonal number 2 is exactly zero"):
        factors = hetero_la.factor_file("lu", save(tmp_path / "a.npy", np.ones((3, 3))), made)
    assert factors.info == 2


def test_wrong_files(tmp_path: Path) -> None:
    given, made = save(tmp_path / "a.npy", random(5, 5)), tmp_path / "f.h5"
    with pytest.raises(ValueError, match="routine must be one of lu, cholesky, qr, not 'svd'"):
        hetero_la.factor_file("svd", given, made)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cannot write .*f\.npy in parts: its suffix is none of"):
        hetero_la.factor_file("lu", given, tmp_path / "f.npy")
    with pytest.raises(FileNotFoundError, match=r"cannot read .*none\.npy: No such file"):
        hetero_la.factor_file("lu", tmp_path / "none.npy", made)
    with pytest.raises(ValueError, match=r"holds an array of shape \(5,\) and dtype float64"):
        hetero_la.factor_file("lu", save(tmp_path / "v.npy", np.ones(5)), made)
    with pytest.raises(ValueError, match="dtype int64, not a matrix of float32"):
        hetero_la.factor_file("lu", save(tmp_path / "i.npy", np.ones((5, 5), int)), made)
    assert not made.exists()


@pytest.mark.parametrize(
    ("routine", "exhaustive"),
    [
        ("lu", False),
        ("cholesky", False),
        *(
            pytest.param(routine, True, marks=pytest.mark.exhaustive)
            for routine in ("lu", "cholesky", "qr")
        ),
    ],
)
def test_a_run_that_fails_anywhere_goes_on(
    tmp_path: Path, routine: Any, exhaustive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any store, in the middle of a write, with the same answer to the last bit."""
    n, nb = 160, 10
    a = random(n, n)
    a = a @ a.T + n * np.eye(n)
    given = save(tmp_path / "a.npy", a)
    how: dict[str, Any] = {"memory": 9 * n * nb * 8, "nb": nb}
    hetero_la.factor_file(routine, given, tmp_path / "whole.h5", **how)
    expected = read_matrix(
        tmp_path / "whole.h5", {"lu": "lu", "cholesky": "l", "qr": "qr"}[routine]
    )
    write = FileStorage._write
    failures, writes = 0, 0

    def fail(self: FileStorage, arrived: Any, buffer: np.ndarray, *rest: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == allowed:
            columns, rows, again = rest
            half = slice(rows.start, (rows.start + rows.stop) // 2)
            if again:
                self._keep(columns.start, rows, np.asarray(self.target[rows, columns]))
            self.target[half, columns] = buffer[: half.stop - half.start]
            raise OSError(28, "No space left on device")
        write(self, arrived, buffer, *rest)

    for allowed in range(1, 60, 1 if exhaustive else 5):
        made, writes = tmp_path / f"f{allowed}.h5", 0
        with monkeypatch.context() as patch:
            patch.setattr(FileStorage, "_write", fail)
            error = None
            try:
                hetero_la.factor_file(routine, given, made, checkpoint=True, **how)
            except OSError as raised:
                error = str(raised)
        if error is None:
            break
        failures += 1
        assert error == f"cannot factor {given}: No space left on device"
        assert not made.exists()
        factors = hetero_la.factor_file(routine, given, made, resume=True, **how)
        assert np.array_equal(read_matrix(made, factors.names[0]), expected)
        assert not list(tmp_path.glob("*.partial")) + list(tmp_path.glob("*.checkpoint"))
    assert failures > (15 if exhaustive else 2)
    assert failures < 59


def test_another_run_s_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, made = save(tmp_path / "a.npy", random(N, N)), tmp_path / "f.h5"
    save_state = CheckpointFolder.save

    def interrupted(self: CheckpointFolder, state: dict[str, Any], values: Any) -> None:
        save_state(self, state, values)
        if state["done"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(CheckpointFolder, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hetero_la.factor_file("lu", given, made, checkpoint=True, memory=LITTLE, nb=NB)
    monkeypatch.undo()
    assert not made.exists()
    with pytest.raises(ValueError, match=r"f\.h5\.checkpoint has the state of another run, of oth"):
        hetero_la.factor_file("lu", given, made, resume=True, memory=LITTLE, nb=NB // 2)
    hetero_la.factor_file("lu", given, made, resume=True, memory=LITTLE, nb=NB)
    expected = scipy.linalg.lu_factor(np.load(given))
    assert np.allclose(read_matrix(made, "lu"), expected[0])


def test_a_killed_process_s_run_goes_on(tmp_path: Path) -> None:
    given, made = save(tmp_path / "a.npy", random(N, N)), tmp_path / "f.zarr"
    how = f"checkpoint=True, memory={LITTLE}, nb={NB}"
    code = (
        "import time, hetero_la\n"
        "from hetero_la.tiles.storage.file_storage import FileStorage as F\n"
        "load = F.load\n"
        "F.load = lambda self, *a, **k: (time.sleep(0.1), load(self, *a, **k))[1]\n"
        f"hetero_la.factor_file('lu', {str(given)!r}, {str(made)!r}, {how})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    state = tmp_path / "f.zarr.checkpoint" / "state.json"
    limit = time.monotonic() + 120
    while not (state.exists() and '"done": 2' in state.read_text()):
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not made.exists()
    hetero_la.factor_file("lu", given, made, resume=True, memory=LITTLE, nb=NB)
    lu, piv = read_matrix(made, "lu"), read_matrix(made, "piv")
    assert lu_ratio(np.load(given), lu, piv) < 30


def test_resume_without_a_state_begins(tmp_path: Path) -> None:
    given, made = save(tmp_path / "a.npy", random(N, N)), tmp_path / "f.h5"
    hetero_la.factor_file("lu", given, made, resume=True, memory=LITTLE, nb=NB)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "f.h5"]


@pytest.mark.gpu
@pytest.mark.parametrize("routine", ["lu", "cholesky", "qr"])
def test_on_a_gpu(tmp_path: Path, routine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a = random(N, N)
    a = a @ a.T + N * np.eye(N)
    given = save(tmp_path / "a.h5", a)
    hetero_la.factor_file(routine, given, tmp_path / "host.h5", memory=LITTLE, nb=NB)
    monkeypatch.setattr("hetero_la.planning.plan.CHUNKS", 0)
    monkeypatch.setattr("hetero_la.in_files.stored_runs.available_memory", lambda: 2)
    monkeypatch.setattr(GpuDevice, "free_bytes", lambda gpu: 2 * LITTLE)  # half of it is used
    made = tmp_path / "gpu.zarr"
    factors = hetero_la.factor_file(routine, given, made, nb=NB, checkpoint=True)
    assert factors.report.plan.workers[0].device == 0
    assert factors.report.plan.groups is not None
    expected = read_matrix(tmp_path / "host.h5", factors.names[0])
    assert np.allclose(read_matrix(made, factors.names[0]), expected, atol=1e-8 * abs(a).max())
