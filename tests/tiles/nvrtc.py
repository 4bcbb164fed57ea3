"""NVRTC of its wheel, which needs no GPU."""

from __future__ import annotations

import contextlib
import ctypes
from importlib.metadata import PackageNotFoundError, distribution

from hetero_la.tiles.kernels.gpu.sources import Source


def _library() -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        for file in distribution("nvidia-cuda-nvrtc").files or ():
            if file.name.startswith("libnvrtc.so"):
                return str(file.locate())
    return None


NVRTC = _library()


def compiled_by_nvrtc(source: Source) -> str:
    """Compile; return what the assembler says of registers and memory, or fail with the errors."""
    nvrtc = ctypes.CDLL(NVRTC)
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    code, given = source.code.encode(), [*source.options, "-arch=sm_90", "--ptxas-options=-v"]
    array = (ctypes.c_char_p * len(given))(*map(str.encode, given))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, b"code.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(given), array)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    said = log.value.decode()
    assert not failed, f"{source}: {said}"
    return said
