"""CUDA sources: the files of tiles/kernels/cuda, and the macros each is compiled with."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FOLDER = Path(__file__).parents[1] / "cuda"


class Source(NamedTuple):
    """A file of a folder, and the macros that are defined for it."""

    file: str
    #: Of the scalars; None for a file that has none.
    dtype: np.dtype | None = None
    defines: tuple[str, ...] = ()
    folder: Path = FOLDER

    @property
    def path(self) -> Path:
        return self.folder / f"{self.file}.cu"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where headers are."""
        return (FOLDER,) if self.folder == FOLDER else (self.folder, FOLDER)

    @property
    def options(self) -> tuple[str, ...]:
        """Options of NVRTC and nvcc, the same for all sources of a folder."""
        return ("-std=c++17", *(f"-I{folder}" for folder in self.folders))

    @property
    def macros(self) -> tuple[str, ...]:
        """Macros with their values, ``NAME=value``."""
        if self.dtype is None:
            return self.defines
        real = "float" if self.dtype.char in "fF" else "double"
        return (f"REAL={real}", f"COMPLEX={int(self.dtype.kind == 'c')}", *self.defines)

    @property
    def code(self) -> str:
        """The definitions of the macros, the file's text, and a digest of the headers.

        CuPy's cache of compiled code knows text and options, but not what is included
        (cupy/cupy#6159).  Macros are no options, since CuPy runs the preprocessor once for each
        set of options, which takes 14 ms, before it looks for what it has compiled.
        """
        defined = "".join(f"#define {each.replace('=', ' ', 1)}\n" for each in self.macros)
        found = (path for folder in self.folders for path in sorted(folder.glob("*.cuh")))
        headers = b"".join(path.read_bytes() for path in found)
        digest = hashlib.sha256(headers).hexdigest()
        return f"{defined}#line 1\n{self.path.read_text()}// headers: {digest}\n"


@functools.cache
def module(source: Source) -> Any:
    """Compile a source; return it as a cupy.RawModule."""
    import cupy

    return cupy.RawModule(code=source.code, options=source.options)


@functools.cache
def kernel(name: str, of: Source) -> Any:
    """Return a kernel, which is compiled at its first call on each GPU."""
    return module(of).get_function(name)
