"""CUDA sources: the files of tiles/kernels/cuda, and the options each is compiled with."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).parents[1] / "cuda"


class Source(NamedTuple):
    """A file of the folder, and the macros that are defined for it."""

    file: str
    #: Of the scalars; None for a file that has none.
    dtype: np.dtype | None = None
    defines: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.file}.cu"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of NVRTC and nvcc."""
        defines = self.defines
        if self.dtype is not None:
            real = "float" if self.dtype.char in "fF" else "double"
            defines = (f"REAL={real}", f"COMPLEX={int(self.dtype.kind == 'c')}", *defines)
        return ("-std=c++17", f"-I{FOLDER}", *(f"-D{each}" for each in defines))

    @property
    def code(self) -> str:
        """The file's text and a digest of the headers.

        CuPy's cache of compiled code knows text and options, but not what is included
        (cupy/cupy#6159).
        """
        headers = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.cuh")))
        return f"{self.path.read_text()}// headers: {hashlib.sha256(headers).hexdigest()}\n"


@functools.cache
def module(source: Source) -> Any:
    """Compile a source; return it as a cupy.RawModule."""
    import cupy

    return cupy.RawModule(code=source.code, options=source.options)
