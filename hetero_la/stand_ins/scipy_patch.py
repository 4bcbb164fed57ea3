"""Our functions in the place of SciPy's and NumPy's, for code that calls these."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from hetero_la.api.cholesky import cho_factor, cho_solve, cholesky
from hetero_la.api.determinant import det
from hetero_la.api.lstsq import lstsq
from hetero_la.api.lu import lu, lu_factor, lu_solve
from hetero_la.api.qr import qr
from hetero_la.api.solve import inv, solve
from hetero_la.stand_ins.numpy_functions import CALLS, on_a_gpu_as_numpy
from hetero_la.tiles.arrays.errors import UnsupportedDtypeError
from hetero_la.tiles.arrays.foreign import is_foreign, without_labels

#: Those that take SciPy's arguments, and return what SciPy's return.
OURS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        lu, lu_factor, lu_solve, solve, inv, det, cholesky, cho_factor, cho_solve, qr, lstsq,
    )
}  # fmt: skip


#: Libraries whose modules call SciPy's and NumPy's own functions: what our functions call must not
#: come back to ours.
_LIBRARIES = ("hetero_la", "scipy", "numpy", "cupy", "cupyx")


class _Patch:
    """How often `patch_scipy` has been entered for each library, in all threads."""

    lock = threading.Lock()
    depth: ClassVar[Counter[str]] = Counter()


@contextlib.contextmanager
def patch_scipy(*, numpy: bool = False) -> Iterator[None]:
    """Let code that calls SciPy's functions call those of this package, without a change to it.

    Within the block, `lu`, `lu_factor`, `lu_solve`, `solve`, `inv`, `det`, `cholesky`,
    `cho_factor`, `cho_solve`, `qr` and `lstsq` of `scipy.linalg` are ours, also in modules that
    have imported them before, as those of scikit-learn have.

    Parameters
    ----------
    numpy : bool, optional
        Whether `solve`, `inv`, `det`, `slogdet`, `cholesky`, `qr`, `lstsq`, `svd`, `pinv` and
        `matrix_rank` of `numpy.linalg` are ours, too, where a GPU is predicted to be faster.
        Elsewhere NumPy's own are called.

    Yields
    ------
    None
        Blocks may be nested.  All threads of the process are affected until the last one ends.

    Notes
    -----
    SciPy's function is called where arguments are not ours: unknown ones, masked arrays, those of
    libraries other than NumPy, CuPy, Dask, pandas and xarray, and dtypes that are not numbers.
    SciPy's and NumPy's own functions do not see ours in their place.

    Only attributes of modules are replaced.  What has been stored elsewhere, such as in a class or
    a default argument, and processes that are started in the block, keep SciPy's.

    ``python -m hetero_la script.py`` runs a whole script in such a block.

    Examples
    --------
    >>> import hetero_la, scipy.linalg
    >>> theirs = scipy.linalg.lu_factor
    >>> with hetero_la.patch_scipy():
    ...     print(scipy.linalg.lu_factor is theirs)
    False
    >>> scipy.linalg.lu_factor is theirs
    True
    """
    libraries = ("scipy", "numpy") if numpy else ("scipy",)
    with _Patch.lock:
        for library in libraries:
            if not _Patch.depth[library]:
                exchange(_stand_ins(library), _modules())
            _Patch.depth[library] += 1
    try:
        yield
    finally:
        with _Patch.lock:
            for library in libraries:
                _Patch.depth[library] -= 1
                if not _Patch.depth[library]:  # also in modules that were imported in the block
                    pairs = [(ours, theirs) for theirs, ours in _stand_ins(library)]
                    exchange(pairs, _modules())


def exchange(pairs: Iterable[tuple[object, object]], modules: Iterable[object]) -> None:
    """Replace objects that are attributes of modules.

    Parameters
    ----------
    pairs : iterable of (object, object)
        What is replaced, wherever it is that very object, and what takes its place.
    modules : iterable of module
        Entries of `sys.modules` that are no modules are passed over.
    """
    replaced = {id(old): new for old, new in pairs}
    for module in modules:
        names = getattr(module, "__dict__", {})
        for name, value in list(names.items()):
            if id(value) in replaced:
                names[name] = replaced[id(value)]


def _modules() -> list[ModuleType]:
    """Return the modules that are imported, but for ours and SciPy's, except `scipy.linalg`."""
    ours = ("hetero_la.", "scipy.")
    return [
        module for name, module in list(sys.modules.items()) if not f"{name}.".startswith(ours)
    ] + [scipy.linalg]


@functools.cache
def _stand_ins(library: str) -> list[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return SciPy's or NumPy's functions, each with what takes its place."""
    if library == "numpy":
        functions = {name: getattr(np.linalg, name) for name in CALLS}
        return [(theirs, _stand_in_of_numpy(theirs, name)) for name, theirs in functions.items()]
    pairs = [(getattr(scipy.linalg, name), ours) for name, ours in OURS.items()]
    return [(theirs, _stand_in(theirs, ours)) for theirs, ours in pairs]


def _called_by_others(library: str, caller: str) -> bool:
    """Return whether a module calls within the block that is not of these libraries."""
    return bool(_Patch.depth[library]) and caller.partition(".")[0] not in _LIBRARIES


def _stand_in_of_numpy(theirs: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that calls ours where that goes to a GPU, and else NumPy's."""

    @functools.wraps(theirs)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if _called_by_others("numpy", sys._getframe(1).f_globals.get("__name__", "")):
            found = on_a_gpu_as_numpy(name, args, kwargs)
            if found is not None:
                return found[0]
        return theirs(*args, **kwargs)

    return stand_in


def _stand_in(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ours, or SciPy's for what ours does not take."""
    known = inspect.signature(ours).parameters.keys() & inspect.signature(theirs).parameters.keys()

    @functools.wraps(theirs)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        within = _called_by_others("scipy", sys._getframe(1).f_globals.get("__name__", ""))
        if within and kwargs.keys() <= known and _takes((*args, *kwargs.values())):
            with contextlib.suppress(UnsupportedDtypeError):  # raised before any work
                return ours(*args, **kwargs)
        return theirs(*args, **kwargs)

    return stand_in


def _takes(values: Sequence[Any]) -> bool:
    """Return whether our functions treat the arrays among these as SciPy's do."""
    entries = [entry for value in values for entry in (value if type(value) is tuple else (value,))]
    return not any(
        isinstance(entry, np.ma.MaskedArray)
        or (is_foreign(entry) and is_foreign(without_labels(entry)))
        for entry in entries
    )


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Run a script as ``python path arguments`` does, within `patch_scipy`."""
    if not os.path.isfile(path):
        sys.stderr.write(f"hetero-la: there is no file {path}\n")
        sys.exit(2)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # Ctrl-C is the script's
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    with patch_scipy():
        runpy.run_path(path, run_name="__main__")
