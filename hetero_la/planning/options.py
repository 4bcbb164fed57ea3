"""Options of a run, checked on creation."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from hetero_la.planning.memory import chunk_within
from hetero_la.scheduler.cluster.sizing import memory_bytes
from hetero_la.tiles.arrays.displayed import as_html, one_line
from hetero_la.tiles.arrays.names import unknown_name
from hetero_la.tiles.kernels.device import PRODUCTS, QR_PANELS, KernelOptions, Products, QRPanel
from hetero_la.tiles.storage.tile_sizes import TileSizes, sizes_text, tile_sizes


class PanelDevice(StrEnum):
    """Device kind that factors panels."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"


#: Values of the option `panel`.
PanelChoice = PanelDevice | Literal["auto", "cpu", "gpu"]


#: Values of the option `order`.
Order = Literal["right", "left"]


#: Values of the argument `pivot` of LU.
Pivoting = Literal["partial", "none"]

#: Values of the argument `precision` of LU, Cholesky and what is solved by factors.
Precision = Literal["full", "mixed"]


class RunOptions(TypedDict, total=False):
    """The fields of `Options` as keyword arguments; None means not given."""

    nb: int | Sequence[int] | str | None
    coarse: int | None
    ib: int | None
    lookahead: int | None
    panel: PanelChoice | None
    inverse_bound: float | None
    qr_panel: QRPanel | None
    products: Products | None
    memory: int | str | None
    order: Order | None
    checkpoint: int | None
    checkpoint_folder: str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True, repr=False)
class Options:
    """Options of a run; None lets the planner choose.

    Parameters
    ----------
    nb : int, sequence of int, str or None, optional
        Tile size, in elements; or the size of each tile from the first on, rows and columns
        alike, of which the last repeats to the end of the matrix, as in ``[1024, 1024, 512]``.
        As text, that is ``"2x1024+512"``.
    coarse : int or None, optional
        Two-level blocking of LU with partial pivoting: up to half of the steps, panels of `nb`
        columns are factored in blocks of `coarse` columns, a multiple of `nb`, and the columns
        beyond a block get one update with all of its panels; look-ahead counts blocks.  None, and
        where only some columns are in memory at a time: an update with each panel.
    ib : int or None, optional
        Inner blocking of a panel on a GPU: columns that its fused kernel factors at once.
    lookahead : int or None, optional
        Number of panels factored ahead of the trailing update; 0 turns look-ahead off.
    panel : {"auto", "cpu", "gpu"}, optional
        Device that factors panels, if there are GPU workers.  With "auto", CPU workers may also
        own columns beside them, and factor the panels of these.
    inverse_bound : float, optional
        Largest 1-norm of the inverse of a diagonal tile of L up to which the triangular
        solve multiplies by that inverse; beyond it, it substitutes.  The residual of the
        multiplication grows with this norm.  In Cholesky it is the tile's 1-norm condition number.
    qr_panel : {"auto", "householder", "cholesky"}, optional
        How a GPU factors a panel of QR: column by column (Householder), or by CholeskyQR2,
        which gives the same reflectors, where the panel is well conditioned; "auto" tries
        that where a panel is too tall for the GPU's registers.
    products : {"native", "split", "3m"}, optional
        How GPUs compute large products.  "split": those of float32 and complex64 on tensor cores,
        as three products in half precision of operands split into parts, which takes a half to a
        third of the time, with errors a few times larger.  "3m": complex ones by three real
        products in place of four, with a small error in norm but not in each part.  CPUs, and
        GPUs of a compute capability below 8.0, compute natively.
    memory : int, str or None, optional
        Bytes that a run may use on each GPU, and on the host for columns of CPU workers, also as
        text, as in ``"40 GB"``.  Where the matrix does not fit, only some columns are there at a
        time, and the others in the array of the result.  None: all that is free.
    order : {"right", "left"}, optional
        Right-looking: a panel updates all columns to its right, with look-ahead.  Left-looking, on
        one worker: a column gets all updates just before it is factored.
    checkpoint : int or None, optional
        On a cluster of processes: number of steps after which the state of the matrix is saved,
        so that at most these are repeated if a worker is lost; with None a run begins again
        from the input.  With checkpoints, panels stay with the owners of their columns.
    checkpoint_folder : path or None, optional
        Folder for checkpoints, shared by the workers and the client; None keeps them in
        the client's memory.

    Raises
    ------
    ValueError
        For an invalid value of an option; the message names it.

    Examples
    --------
    >>> Options(nb=256).panel
    <PanelDevice.AUTO: 'auto'>
    >>> Options(nb=0)
    Traceback (most recent call last):
        ...
    ValueError: nb must be a positive integer, a list of them, text as '12x1024+512', or None, not 0
    >>> Options(nb="3x256+64").nb
    (256, 256, 256, 64)
    """

    nb: int | Sequence[int] | str | None = None
    coarse: int | None = None
    ib: int | None = None
    lookahead: int | None = None
    panel: PanelChoice = PanelDevice.AUTO
    inverse_bound: float = KernelOptions().inverse_bound
    qr_panel: QRPanel = KernelOptions().qr_panel
    products: Products = KernelOptions().products
    memory: int | str | None = None
    order: Order = "right"
    checkpoint: int | None = None
    checkpoint_folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.nb is not None:
            object.__setattr__(self, "nb", tile_sizes(self.nb))
        self._check_coarse()
        _check_integer("ib", self.ib, 1, "a positive integer")
        _check_integer("lookahead", self.lookahead, 0, "a non-negative integer")
        try:
            object.__setattr__(self, "panel", PanelDevice(self.panel))
        except ValueError:
            raise ValueError(f"panel must be 'auto', 'cpu' or 'gpu', not {self.panel!r}") from None
        bound = self.inverse_bound
        if isinstance(bound, bool) or not isinstance(bound, numbers.Real) or not bound >= 0:
            raise ValueError(f"inverse_bound must be a number that is not negative, not {bound!r}")
        for name, known in (
            ("qr_panel", QR_PANELS), ("products", PRODUCTS), ("order", get_args(Order))
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        if self.memory is not None:
            object.__setattr__(self, "memory", memory_bytes(self.memory))
        self._check_checkpoints()

    def _check_coarse(self) -> None:
        if self.coarse is None:
            return
        _check_integer("coarse", self.coarse, 1, "a positive integer")
        if self.order == "left":
            raise ValueError("coarse is for the right-looking order, not for order='left'")
        if not isinstance(self.nb, int) or self.coarse % self.nb:
            nb = None if self.sizes is None else sizes_text(self.sizes)
            raise ValueError(
                f"coarse must be a multiple of nb, one tile size, but coarse={self.coarse} "
                f"and nb={nb}"
            )

    def _check_checkpoints(self) -> None:
        _check_integer("checkpoint", self.checkpoint, 1, "a positive number of steps")
        if self.checkpoint is not None and self.panel is PanelDevice.CPU:
            raise ValueError("checkpoint needs panels at the owners of columns, not panel='cpu'")
        if self.checkpoint_folder is None:
            return
        if not isinstance(self.checkpoint_folder, str | os.PathLike):
            raise ValueError(f"checkpoint_folder must be a path, not {self.checkpoint_folder!r}")
        folder = os.path.abspath(self.checkpoint_folder)
        if self.checkpoint is None:
            raise ValueError(f"checkpoint_folder={folder!r} needs checkpoint, a number of steps")
        if not os.path.isdir(folder):
            raise ValueError(f"checkpoint_folder must be a folder that exists, not {folder!r}")
        object.__setattr__(self, "checkpoint_folder", folder)

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return one_line("Options", *(f"{name}={value}" for name, value in self.chosen.items()))

    @property
    def chosen(self) -> dict[str, str]:
        """The options that are not their defaults, with their values as Python text."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: option_text(value) for field, value in values if value != field.default}

    @classmethod
    def choose(cls, given: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> Options:
        """Make options from keyword arguments; those missing or None are taken from a preset.

        Raises
        ------
        TypeError
            If a name is unknown.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise TypeError(unknown_name("option ", unknown[0], sorted(known)))
        wanted = {name: value for name, value in given.items() if value is not None}
        return cls(**{**{k: v for k, v in (preset or {}).items() if v is not None}, **wanted})

    @property
    def sizes(self) -> TileSizes | None:
        """Tile size or sizes; `nb` after its validation."""
        assert self.nb is None or isinstance(self.nb, int | tuple)
        return self.nb

    @property
    def memory_limit(self) -> int | None:
        """Bytes of memory; `memory` after its validation."""
        assert not isinstance(self.memory, str)
        return self.memory

    @property
    def kernel(self) -> KernelOptions:
        """Options that are passed on to the kernels."""
        return KernelOptions(
            ib=self.ib, inverse_bound=float(self.inverse_bound), qr_panel=self.qr_panel,
            products=self.products, chunk=chunk_within(self.memory_limit),
        )  # fmt: skip

    def require_products(self, dtype: np.dtype) -> None:
        """Raise ValueError if `products` are not for matrices of a type."""
        types = {"split": "float32 and complex64", "3m": "complex64 and complex128"}
        known = types.get(self.products)
        if known is not None and dtype.name not in known.split(" and "):
            raise ValueError(f"products={self.products!r} is for {known}, not {dtype.name}")


def option_text(value: Any) -> str:
    """Return the value of an option as Python text, tile sizes in their short form.

    Examples
    --------
    >>> option_text((256, 256, 128)), option_text(PanelDevice.AUTO), option_text(None)
    ("'2x256+128'", "'auto'", 'None')
    """
    if isinstance(value, tuple):
        value = sizes_text(value)
    return repr(str(value) if isinstance(value, str) else value)


def _check_integer(name: str, value: Any, least: int, wanted: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be {wanted} or None, not {value!r}")
