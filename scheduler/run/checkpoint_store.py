"""Checkpoints of a run over processes: the state of the matrix before some step, kept safe.

`hetero_la.scheduler.program.checkpoint_cuts` defines checkpoints.  One becomes valid when all its
parts are with the client, or in files that the client sees; until then the one before it holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hetero_la.scheduler.run.step_memory import Name
from hetero_la.tiles.arrays.transfer import to_host
from hetero_la.tiles.storage.layout import TileLayout
from hetero_la.tiles.storage.shard import ALL_ROWS, ArrayStorage

Saved = dict[Name, np.ndarray | str]  #: arrays, or the names of files that hold them


def write_files(saved: dict[Name, np.ndarray], folder: str, prefix: str) -> Saved:
    """Write arrays to files, each of which appears complete or not at all."""
    written: Saved = {}
    for (name, index), array in saved.items():
        path = os.path.join(folder, f"{prefix}-{name}-{index}.npy")
        with open(path + ".part", "wb") as file:
            np.save(file, array)
        os.replace(path + ".part", path)
        written[name, index] = path
    return written


class Checkpoints:
    """The latest complete checkpoint of a run.

    Parameters
    ----------
    layout : TileLayout
        How the matrix is cut.
    folder : str, optional
        Of files, which all workers and the client see; None keeps it in the client's memory.

    Attributes
    ----------
    step : int
        The first step that is still to be done; 0 if there is no checkpoint yet.
    folder : str or None
        Where workers write the files of this run.

    Examples
    --------
    >>> import numpy as np
    >>> checkpoints = Checkpoints(TileLayout(2, 2, 2))
    >>> checkpoints.complete(1, [{("A", 0): np.eye(2), ("info", 0): np.zeros(1)}])
    >>> checkpoints.step, list(checkpoints.values({"A"}))
    (1, [('info', 0)])
    """

    def __init__(self, layout: TileLayout, folder: str | None = None) -> None:
        self.step = 0
        self.folder = None if folder is None else tempfile.mkdtemp(prefix="hetero-la-", dir=folder)
        self._saved: Saved = {}
        self._column = {layout.columns(j)[0]: j for j in range(layout.nt + layout.rt)}

    def complete(self, step: int, parts: Iterable[Saved]) -> None:
        """Take the parts of all workers as the checkpoint before `step`.

        Raises
        ------
        FileNotFoundError
            If the client does not see a file that a worker has written.
        """
        new: Saved = {name: saved for part in parts for name, saved in part.items()}
        for saved in new.values():
            if isinstance(saved, str) and not Path(saved).exists():
                raise FileNotFoundError(
                    f"a worker wrote {saved}, which the client does not see: "
                    "checkpoint_folder must be shared by all hosts of the cluster"
                )
        replaced = [self._saved[name] for name in new if name in self._saved]
        self._saved.update(new)
        self.step = step
        for saved in replaced:
            if isinstance(saved, str):
                Path(saved).unlink(missing_ok=True)

    def values(self, matrices: set[str]) -> dict[Name, np.ndarray]:
        """Return the per-step values: all but what belongs to one of the `matrices`."""
        return {name: _array(self._saved[name]) for name in self._saved if name[0] not in matrices}

    def columns(
        self, base: ArrayStorage, start: int, stop: int, rows: slice = ALL_ROWS
    ) -> np.ndarray:
        """Return rows of a tile column of the checkpoint or, where it has none, of the input.

        They are those that the run touches, no more of which is saved.
        """
        saved = self._saved.get(("A", self._column[start]))
        return to_host(base.columns(start, stop)[rows]) if saved is None else _array(saved)

    def remove(self) -> None:
        """Forget everything, and remove the files."""
        self._saved.clear()
        if self.folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.folder)


def _array(saved: np.ndarray | str) -> np.ndarray:
    return np.load(saved) if isinstance(saved, str) else saved
