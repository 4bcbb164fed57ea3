"""Arrays of other libraries, by the protocols that they share; none of these is imported here.

DLPack (torch, JAX and others), `__cuda_array_interface__` (Numba and others), the array API, and
the labelled arrays of pandas and xarray.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hetero_la.tiles.arrays.errors import HeteroLAError
from hetero_la.tiles.arrays.transfer import adopted_by_cupy, is_device_array, on_device_of

#: Classes of arrays that are taken as they are.
_OURS = {("numpy", "ndarray"), ("cupy", "ndarray"), ("dask", "Array")}
_PROTOCOLS = ("__dlpack__", "__cuda_array_interface__", "__array_namespace__")
_LABELLED = ("pandas", "xarray")
_SPARSE = ("scipy.sparse", "cupyx.scipy.sparse", "sparse")
#: DLPack's types of devices: kDLCPU and kDLCUDAHost; kDLCUDA and kDLCUDAManaged.
_HOST, _GPU = (1, 3), (2, 13)


#: What is known of classes.
_foreign_classes: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_foreign(a: Any) -> bool:
    """Return whether `a` is an array, but neither NumPy's, CuPy's nor Dask's.

    Examples
    --------
    >>> is_foreign(np.eye(2)), is_foreign([1, 2])
    (False, False)
    """
    cls = type(a)
    if cls not in _foreign_classes:
        named = _library(cls) in _LABELLED or _is_sparse(cls)
        like_an_array = named or any(hasattr(cls, name) for name in _PROTOCOLS)
        ours = _is_ours(cls) or issubclass(cls, np.generic)
        _foreign_classes[cls] = like_an_array and not ours
    return _foreign_classes[cls]


def _is_ours(cls: type) -> bool:
    return not _OURS.isdisjoint((_library(base), base.__name__) for base in cls.__mro__)


def _library(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _is_sparse(cls: type) -> bool:
    return f"{cls.__module__}.".startswith(tuple(f"{name}." for name in _SPARSE))


def without_labels(a: Any) -> Any:
    """Return the values of an array of pandas or xarray, and another array as it is."""
    library = _library(type(a))
    if library == "xarray" and hasattr(type(a), "data"):
        return a.data  # of NumPy, or another library
    if library != "pandas":
        return np.asarray(a) if library in _LABELLED else a
    # Columns whose types differ, or whose numbers may be missing, become objects: of a frame, that
    # is seen without its rows.
    if np.asarray(a.iloc[:0] if a.ndim == 2 else a).dtype != object:
        return np.asarray(a)
    dtypes = {a.dtype} if a.ndim == 1 else set(a.dtypes)
    if not all(getattr(dtype, "kind", "O") in "biuf" for dtype in dtypes):
        return np.asarray(a)
    single = all(str(dtype) == "Float32" for dtype in dtypes)
    return a.to_numpy(np.float32 if single else np.float64)  # what is missing is NaN


def kind_of(a: Any) -> ModuleType | None:
    """Return the module that makes arrays of the kind of `a` from others; None if none does."""
    if hasattr(type(a), "__array_namespace__"):
        namespace: ModuleType = a.__array_namespace__()
        return namespace
    modules = (sys.modules.get(_library(base)) for base in type(a).__mro__)
    return next((module for module in modules if hasattr(module, "from_dlpack")), None)


def one_kind(values: Sequence[Any]) -> Any:
    """Return an array of whose kind the results are to be; None if that is NumPy's or CuPy's.

    Raises
    ------
    TypeError
        If there are arrays of several libraries, or what is no array of numbers beside ours.
    """
    foreign = {kind_of(a): a for a in values if is_foreign(a)}
    like = next((a for kind, a in foreign.items() if kind not in (None, np)), None)
    others = [a for a in values if _is_ours(type(a))]
    if like is not None and (len(foreign) > 1 or others):
        for a in foreign.values():
            _refuse_what_is_no_array(a)
        arrays = [*foreign.values(), *others]
        names = " and ".join(
            dict.fromkeys(f"{_library(type(a))}.{type(a).__name__}" for a in arrays)
        )
        raise TypeError(f"the arrays of a call must be of one library, not {names}")
    return like


def is_immutable(a: Any) -> bool:
    """Return whether `a` must not be changed, although its memory can be: a JAX array."""
    return _is_jax(type(a))


def _is_jax(cls: type) -> bool:
    return _library(cls) in ("jax", "jaxlib")


def to_native(a: Any) -> Any:
    """Return another library's array as one of NumPy or CuPy, in the same memory.

    On a GPU, CuPy's current stream waits for the work on `a` that its library has enqueued.

    Raises
    ------
    TypeError
        If that is not possible: a sparse array, one that records gradients, a device or dtype that
        is neither NumPy's nor CuPy's.
    hetero_la.tiles.arrays.errors.DeviceUnavailableError
        If the array is on a GPU, and there is no CuPy.
    """
    _refuse_what_is_no_array(a)
    for resolve in ("resolve_conj", "resolve_neg"):  # torch's views that are yet to be conjugated
        a = getattr(a, resolve)() if hasattr(a, resolve) else a
    try:
        if not hasattr(a, "__dlpack__"):
            return adopted_by_cupy(a) if hasattr(a, "__cuda_array_interface__") else np.asarray(a)
        device = a.__dlpack_device__()[0]
        if device in _HOST:
            return np.from_dlpack(a)
        if device in _GPU:
            return adopted_by_cupy(a)
    except HeteroLAError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(_unreadable(a, str(error))) from error
    raise TypeError(_unreadable(a, f"DLPack's device type {int(device)}"))


def _refuse_what_is_no_array(a: Any) -> None:
    """Raise TypeError, which says what to do, for what only looks like an array of numbers."""
    name, layout = f"a {type(a).__name__}", str(getattr(a, "layout", "torch.strided"))
    if _is_sparse(type(a)):
        raise TypeError(
            f"{name} is sparse: convert it to a dense array, by its toarray() or todense(), "
            "or use scipy.sparse.linalg"
        )
    if layout.startswith("torch.") and layout != "torch.strided":
        raise TypeError(f"{name} with layout {layout} is not dense: convert it by its to_dense()")
    if getattr(a, "requires_grad", False):
        raise TypeError(
            f"{name} requires gradients, which are not computed here: pass its detach(), "
            "or use torch.linalg"
        )
    if any(base.__name__ == "Tracer" and _is_jax(base) for base in type(a).__mro__):
        raise TypeError(
            f"{name} has no values inside jax.jit, jax.grad or jax.vmap: call outside of these, "
            "through jax.pure_callback, or use jax.numpy.linalg"
        )


def _unreadable(a: Any, why: str) -> str:
    told = (f"{name} {getattr(a, name)}" for name in ("dtype", "device") if hasattr(a, name))
    return (
        f"a {type(a).__name__} of {', '.join(told)} cannot be read ({why.rstrip('.')}): copy it to "
        "the host or to a CUDA GPU, as float32, float64, complex64 or complex128"
    )


def like_foreign(found: Any, like: Any) -> Any:
    """Return an array of NumPy or CuPy as one of the kind of `like`, if possible without a copy.

    On a GPU, the library's current stream waits for the work that CuPy's has enqueued.
    """
    kind: Any = kind_of(like)
    if not is_device_array(found) and not found.flags.writeable:
        found = found.copy()  # DLPack's first version knows no read-only memory
    with on_device_of(found):
        exchanged = hasattr(kind, "from_dlpack") and hasattr(like, "__dlpack__")
        array = kind.from_dlpack(found) if exchanged else kind.asarray(found)
    moved = hasattr(array, "to_device") and array.device != like.device
    return array.to_device(like.device) if moved else array
