"""State of a run on a matrix in a file, from which it goes on if it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hetero_la.scheduler.machine.atomic_files import atomic_replacement
from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.storage.file_storage import StoredMatrix

_STATE, _OLD = "state.json", "old"


@dataclass
class CheckpointFolder:
    """A folder with what a run has made, besides the columns in the file of its result.

    Attributes
    ----------
    path : Path
        The folder.
    saved : set of Name
        Per-step values that are there.
    """

    path: Path
    saved: set[Name] = field(default_factory=set)

    def begin(self) -> None:
        """Make the folder anew."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()

    def read(self) -> dict[str, Any] | None:
        """Return the state that was saved last; None if there is none."""
        try:
            return dict(json.loads((self.path / _STATE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def save(self, state: dict[str, Any], values: dict[Name, np.ndarray]) -> None:
        """Save the values that are new, and then the state; what was kept is not needed more."""
        new = {name: value for name, value in values.items() if name not in self.saved}
        if new:
            arrays: dict[str, Any] = {f"{name}.{step}": one for (name, step), one in new.items()}
            with atomic_replacement(self.path / f"values-{state['done']}.npz") as unfinished:
                np.savez(unfinished, **arrays)
        self.saved |= new.keys()
        with atomic_replacement(self.path / _STATE) as unfinished:
            unfinished.write_text(json.dumps(state), encoding="utf-8")
        for kept in self.path.glob(f"{_OLD}-*.npy"):
            kept.unlink()

    def values(self, done: int) -> dict[Name, np.ndarray]:
        """Return all values that were saved until a visit."""
        found: dict[Name, np.ndarray] = {}
        for path in self.path.glob("values-*.npz"):
            if int(path.stem.removeprefix("values-")) <= done:
                with np.load(path) as arrays:
                    for key in arrays.files:
                        name, step = key.rsplit(".", 1)
                        found[name, int(step)] = np.asfortranarray(arrays[key])
        self.saved = set(found)
        return found

    def keep(self, start: int, rows: slice, old: np.ndarray) -> None:
        """Keep rows of a column that are about to be written again, once in a visit."""
        path = self.path / f"{_OLD}-{start}-{rows.start}.npy"
        if not path.exists():
            with atomic_replacement(path) as unfinished, open(unfinished, "wb") as file:
                np.save(file, old)
                file.flush()
                os.fsync(file.fileno())

    def restore(self, matrix: StoredMatrix) -> None:
        """Write rows back that a visit which did not end may have changed."""
        for path in self.path.glob(f"{_OLD}-*.npy"):
            _, start, top = path.stem.split("-")
            old = np.load(path)
            rows = slice(int(top), int(top) + old.shape[0])
            matrix[rows, slice(int(start), int(start) + old.shape[1])] = old

    def remove(self) -> None:
        """Remove the folder: the run has ended."""
        shutil.rmtree(self.path)
