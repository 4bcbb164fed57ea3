"""Bad input is refused in one clear sentence, before any work starts."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
from numpy.linalg import LinAlgError
from scipy.linalg import LinAlgWarning

import hetero_la
from hetero_la import (
    Cluster,
    Options,
    cho_factor,
    cho_solve,
    cholesky,
    det,
    inv,
    lstsq,
    lu,
    lu_factor,
    lu_solve,
    qr,
    qr_factor,
    qr_multiply,
    slogdet,
    solve,
)
from hetero_la.planning.memory import require_room
from hetero_la.tiles.arrays.errors import (
    DeviceUnavailableError,
    HeteroLAError,
    InsufficientMemoryError,
)
from hetero_la.tiles.kernels.cpu.device import CpuDevice
from tests.support import random

SQUARE = (solve, inv, det, slogdet, cholesky, cho_factor)
ALL = (lu_factor, lu, qr, qr_factor, lstsq, *SQUARE)


def call(function: Callable[..., Any], a: Any, **options: Any) -> Any:
    if function in (solve, lstsq):
        return function(a, np.ones(np.shape(a)[:1]), **options)
    return function(a, **options)


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a kernel is called, or a shard or a result allocated."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("work has started")

    monkeypatch.setattr(CpuDevice, "call", refuse)
    monkeypatch.setattr(CpuDevice, "empty", refuse)
    monkeypatch.setattr("hetero_la.execution.destination.column_major_empty", refuse)


def one_sentence(caught: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


# --- the matrix


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("dtype", ["object", "str", "bytes", "V4", "datetime64[s]", "m8[s]"])
def test_what_is_no_number_is_refused(function: Callable[..., Any], dtype: str) -> None:
    a = np.zeros((3, 3), dtype)
    said = rf"^a has dtype {re.escape(str(a.dtype))}, which cannot be cast to float\(32, 64\)"
    for kind in (ValueError, TypeError):  # SciPy's functions differ
        with pytest.raises(kind, match=said):
            call(function, a)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_what_is_no_matrix_is_refused(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    wanted = rf"^Input array a .* two-dimensional, not of shape {re.escape(str(shape))}$"
    if function in (cholesky, cho_factor):  # a number has a root, as in SciPy
        shape, wanted = (3,), r"^Expected a square matrix .* a has shape \(1, 3\)$"
    if function is solve:
        shape, wanted = (3,), r"^Input array a .* two-dimensional, not of shape \(3,\)$"
    with pytest.raises(ValueError, match=wanted):
        call(function, np.zeros(shape))


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", SQUARE)
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (0, 1)])
def test_what_is_not_square_is_refused(
    function: Callable[..., Any], shape: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"be square, and a has shape {shape}")):
        call(function, np.zeros(shape))


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, complex(1, np.nan)])
def test_what_is_not_finite_is_refused(function: Callable[..., Any], bad: complex) -> None:
    a = random(9, dtype="complex128" if isinstance(bad, complex) else "float64")
    a[7, 2] = bad
    with pytest.raises(ValueError, match=r"^a: array must not contain infs or NaNs$"):
        call(function, a)


@pytest.mark.usefixtures("nothing_starts")
def test_a_nan_that_infinities_hide() -> None:
    for pair in ([np.inf, -np.inf], [np.inf, np.nan]):
        a = np.eye(4)
        a[1, :2] = pair
        with pytest.raises(ValueError, match="infs or NaNs"):
            lu_factor(a)


def test_large_numbers_are_finite() -> None:
    a = np.diag(np.full(4, np.finfo(np.float64).max))
    assert lu_factor(a).info == 0
    with pytest.raises(ValueError, match="infs or NaNs"):
        lu_factor(np.where(a, a, np.nan))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [(0, 0), (9, 3), (25, 25)])
def test_unchecked_nans_neither_crash_nor_hang(bad: float, where: tuple[int, int]) -> None:
    a = random(26)
    a[where] = bad
    with Cluster(cpus=1, gpus=0, virtual_gpus=2) as cluster:
        for options in (
            {},
            {"client": cluster, "panel": "gpu"},
            {"client": cluster, "panel": "cpu"},
        ):
            factors = lu_factor(a, check_finite=False, nb=8, **options)
            assert not np.isfinite(factors.lu).all()
            try:
                x = solve(a, np.ones(26), check_finite=False, nb=8, **options)
            except LinAlgError:
                continue
            assert x.shape == (26,)


# --- right-hand sides


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("shape", [(4,), (4, 2), (0,), (1, 3)])
def test_right_hand_sides_of_another_size(shape: tuple[int, ...]) -> None:
    said = re.escape(f"b has shape {shape}, which does not fit")
    with pytest.raises(ValueError, match=rf"{said} a of shape \(3, 3\)"):
        solve(np.eye(3), np.ones(shape))
    with pytest.raises(ValueError, match=rf"{said} factors of shape \(3, 3\)"):
        lu_solve((np.eye(3), np.arange(3)), np.ones(shape))
    for function in (lstsq, lambda a, b: solve(a, b, assume_a="pos")):
        with pytest.raises(ValueError, match=rf"{said} a of shape \(3, 3\)"):
            function(np.eye(3), np.ones(shape))
    with pytest.raises(ValueError, match=rf"{said} a factor of shape \(3, 3\)"):
        cho_solve((np.eye(3), True), np.ones(shape))


@pytest.mark.parametrize("shape", [(4,), (4, 2), (), (2, 3, 1)])
def test_right_hand_sides_that_do_not_fit_qr_factors(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"b (has|must have) .*" + re.escape(str(shape))):
        qr_factor(np.eye(3)).solve(np.ones(shape))


@pytest.mark.usefixtures("nothing_starts")
def test_a_right_hand_side_without_dimensions() -> None:
    wanted = r"b must have 1 or 2 dimensions, not shape \(\)"
    with pytest.raises(ValueError, match=wanted):
        solve(np.eye(3), 1.0)
    with pytest.raises(ValueError, match=wanted):
        lu_solve((np.eye(3), np.arange(3)), 1.0)
    with pytest.raises(ValueError, match=wanted):
        cho_solve((np.eye(3), True), 1.0)
    with pytest.raises(ValueError, match=wanted):
        lstsq(np.eye(3), 1.0)
    with pytest.raises(ValueError, match=r"c must have 1 or 2 dimensions, not shape \(\)"):
        qr_multiply(np.eye(3), 1.0)


@pytest.mark.usefixtures("nothing_starts")
def test_other_bad_right_hand_sides() -> None:
    with pytest.raises(ValueError, match="b has dtype object"):
        solve(np.eye(3), np.ones(3, object))
    with pytest.raises(ValueError, match="b: array must not contain infs or NaNs"):
        solve(np.eye(3), [1, np.nan, 2])
    with pytest.raises(ValueError, match="b: array must not contain infs or NaNs"):
        lu_solve((np.eye(3), np.arange(3)), [1, np.inf, 2])
    with pytest.raises(ValueError, match="lu: array must not contain infs or NaNs"):
        lu_solve((np.full((3, 3), np.nan), np.arange(3)), np.ones(3))
    with pytest.raises(ValueError, match=r"square, and lu has shape \(4, 3\)"):
        lu_solve((np.ones((4, 3)), np.arange(3)), np.ones(4))
    for function in (lstsq, lambda a, b: solve(a, b, assume_a="pos"),
                     lambda a, b: cho_solve((a, True), b)):  # fmt: skip
        with pytest.raises(ValueError, match="b has dtype object"):
            function(np.eye(3), np.ones(3, object))
        with pytest.raises(ValueError, match="b: array must not contain infs or NaNs"):
            function(np.eye(3), [1, np.nan, 2])
    with pytest.raises(ValueError, match="c: array must not contain infs or NaNs"):
        cho_solve((np.full((3, 3), np.nan), True), np.ones(3))
    with pytest.raises(ValueError, match=r"square, and c has shape \(4, 3\)"):
        cho_solve((np.ones((4, 3)), True), np.ones(4))
    with pytest.raises(ValueError, match="c: array must not contain infs or NaNs"):
        qr_multiply(np.eye(3), [1, np.nan, 2])
    for trans in (-1, 3, "T", None):
        with pytest.raises(ValueError, match=f"trans must be 0, 1 or 2, not {trans!r}"):
            lu_solve((np.eye(3), np.arange(3)), np.ones(3), trans=trans)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("structure", ["nonsense", "", 1, ["sym"]])
def test_structures_that_are_not_known(structure: Any) -> None:
    said = rf"one of 'general', .*'pos', not {re.escape(repr(structure))}$"
    with pytest.raises(ValueError, match=said):
        solve(np.eye(2), np.ones(2), assume_a=structure)
    with pytest.raises(ValueError, match=said):
        inv(np.eye(2), assume_a=structure)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("structure", ["tridiagonal", "banded", "symmetric", "positive definite"])
def test_structures_that_scipy_does_not_invert(structure: str) -> None:
    with pytest.raises(KeyError):
        scipy.linalg.inv(np.eye(2), assume_a=structure)
    with pytest.raises(ValueError, match=rf"assume_a must be .*, not '{structure}'$"):
        inv(np.eye(2), assume_a=structure)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("structure", [None, "diagonal", "banded", "her"])
@pytest.mark.parametrize(("one", "other"), [(1j, 1), (1, 1j), (1j, 1j)])
def test_complex_transposed_systems_are_refused_as_by_scipy(
    structure: str | None, one: complex, other: complex
) -> None:
    for function in (solve, scipy.linalg.solve):
        with pytest.raises(NotImplementedError):
            function(np.eye(2) * one, np.ones(2) * other, assume_a=structure, transposed=True)


@pytest.mark.usefixtures("nothing_starts")
def test_unknown_option_where_no_run_is_needed() -> None:
    with pytest.raises(TypeError, match="no option 'nbb': did you mean 'nb'"):
        solve(np.eye(2), np.ones(2), assume_a="diagonal", nbb=2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_right_hand_sides_of_factors_that_are_not_finite(bad: float) -> None:
    b = np.array([1.0, bad, 3.0])
    for factor in (lu_factor, cho_factor, qr_factor):
        with pytest.raises(ValueError, match=r"^b: array must not contain infs or NaNs$"):
            factor(np.eye(3)).solve(b)
    with pytest.raises(ValueError, match=r"^b: array must not contain infs or NaNs$"):
        cho_factor(np.eye(3)).solve(da.from_array(b)).compute()
    for adjoint in (False, True):
        with pytest.raises(ValueError, match=r"^c: array must not contain infs or NaNs$"):
            qr_factor(np.eye(3)).multiply(b[:, None], adjoint)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("structure", ["upper triangular", "lower triangular", "diagonal"])
def test_a_client_that_is_none_where_no_client_is_needed(structure: str) -> None:
    with pytest.raises(TypeError, match=r"dask.distributed.Client .* not int"):
        solve(np.eye(3), np.ones(3), assume_a=structure, client=3)
    with pytest.raises(TypeError, match=r"dask.distributed.Client .* not int"):
        inv(np.eye(3), assume_a=structure, client=3)
    with pytest.raises(TypeError, match=r"dask.distributed.Client .* not int"):
        solve(da.eye(3), da.ones(3), assume_a=structure, client=3)


@pytest.mark.usefixtures("nothing_starts")
def test_what_lu_of_nothing_is_given() -> None:
    for shape in ((0, 3), (2, 3, 0), (0, 2, 2)):
        with pytest.raises(TypeError, match="no option 'nbb': did you mean 'nb'"):
            lu(np.empty(shape), nbb=2)
        with pytest.raises(ValueError, match=r"^nb must be"):
            lu(np.empty(shape), nb=0)
        with pytest.raises(TypeError, match=r"dask.distributed.Client .* not int"):
            lu(np.empty(shape), client=3)
        assert lu(np.empty(shape), nb=2, client=None)[1].shape[:-2] == shape[:-2]


@pytest.mark.parametrize(
    ("piv", "but"),
    [
        ([0, 1, 3], "0 to 3"), ([-1, 1, 2], "-1 to 2"), ([0, 1], r"have shape \(2,\)"),
        ([0.0, 1.0, 2.0], "float64"), ([True, True, True], "bool"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("trans", [0, 1, 2])
def test_pivots_that_are_none(piv: Any, but: str, trans: int) -> None:
    said = pytest.raises(ValueError, match=f"^piv must hold 3 row indices below 3, not {but}$")
    with said:
        lu_solve((np.eye(3), np.array(piv)), np.ones(3), trans)
    for given in (np.array(piv), da.from_array(np.array(piv))):
        with said:
            lu_solve((da.from_array(np.eye(3)), given), np.ones(3), trans).compute()


# --- masked arrays

MASKED = r"^masked arrays are not supported: replace the masked entries with filled\(\)$"


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", ALL)
def test_masked_matrices_are_refused(function: Callable[..., Any]) -> None:
    a = np.ma.masked_greater(np.eye(3), 2)
    for given in (a, np.ma.stack([a, a])):
        with pytest.raises(ValueError, match=MASKED):
            call(function, given)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", [lu_factor, lu, qr, det, inv, cholesky, solve])
@pytest.mark.parametrize("options", [{}, {"asarray": False}])
def test_masked_dask_arrays_are_refused(
    function: Callable[..., Any], options: dict[str, Any]
) -> None:
    a = da.from_array(np.ma.masked_greater(np.eye(3), 2), **options)
    with pytest.raises(ValueError, match=MASKED):
        call(function, a)


@pytest.mark.usefixtures("nothing_starts")
def test_masked_right_hand_sides() -> None:
    a, b = np.eye(3), np.ma.masked_greater([1.0, 2.0, 3.0], 2)
    for function in (
        solve, lstsq, qr_multiply, lambda a, b: lu_solve((a, np.arange(3)), b),
        lambda a, b: cho_solve((a, True), b),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=MASKED):
            function(a, b)
    for other in (b, da.from_array(b, asarray=False)):
        with pytest.raises(ValueError, match=MASKED):
            solve(da.from_array(a), other)


# --- singular matrices


@pytest.mark.parametrize("n", [1, 7, 8, 20])
def test_solving_with_a_singular_matrix(n: int) -> None:
    a = random(n)
    a[:, n // 2] = 0
    for function in (lambda: solve(a, np.ones(n), nb=8), lambda: inv(a, nb=8)):
        with pytest.raises(LinAlgError, match=f"diagonal number {n // 2 + 1} of U is exactly zero"):
            function()


# --- options


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", ALL)
def test_unknown_options_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"no option 'nbb': did you mean 'nb'\?"):
        call(function, np.eye(3), nbb=2)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("option", "value"),
    [("nb", 0), ("nb", -3), ("nb", 2.5), ("nb", True), ("nb", "8x"), ("nb", "0x8"), ("nb", "4x8+"),
     ("nb", "0+8"), ("nb", "999999999x1"), ("nb", []), ("nb", [8, 0]), ("nb", (8, 2.5)),
     ("nb", [True]), ("ib", 0), ("lookahead", -1),
     ("lookahead", 0.5), ("panel", "tpu"), ("panel", 3), ("inverse_bound", -1.0),
     ("inverse_bound", float("nan")), ("inverse_bound", "1"), ("qr_panel", "lapack"),
     ("qr_panel", 0), ("products", "tf32"), ("products", 3)],
)  # fmt: skip
def test_options_that_mean_nothing(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{option} must be .*, not {re.escape(repr(value))}$"):
        lu_factor(np.eye(3), **{option: value})
    with pytest.raises(ValueError, match=f"^{option} must be"):
        Options(**{option: value})


def test_options_that_are_not_given() -> None:
    assert Options.choose({"nb": None, "panel": None}) == Options()
    assert Options.choose({"nb": 3}, {"nb": 5, "lookahead": 2, "panel": None}) == Options(
        nb=3, lookahead=2
    )
    assert Options(nb=np.int64(4)).nb == 4
    assert Options(panel="cpu").panel == "cpu"
    assert hash(Options()) == hash(Options())


# --- workers


@pytest.mark.usefixtures("nothing_starts")
def test_panels_where_nobody_is() -> None:
    a = np.eye(30)
    wanted = pytest.raises(DeviceUnavailableError, match="needs a GPU worker, and there is none")
    with Cluster(cpus=2, gpus=0) as cluster, wanted:
        lu_factor(a, nb=8, panel="gpu", client=cluster)
    wanted = pytest.raises(DeviceUnavailableError, match="panel='cpu' needs a CPU worker")
    with Cluster(cpus=0, gpus=0, virtual_gpus=2) as cluster, wanted:
        lu_factor(a, nb=8, panel="cpu", client=cluster)


@pytest.mark.usefixtures("nothing_starts")
def test_gpu_panels_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(cpus=1, gpus=0) as cluster:
        monkeypatch.setattr(
            "hetero_la.execution.executor_choice.embedded_client", cluster.private_client
        )
        with pytest.raises(DeviceUnavailableError, match="panel='gpu' needs a GPU worker"):
            lu_factor(np.eye(30), panel="gpu")


@pytest.mark.usefixtures("nothing_starts")
def test_clients_that_cannot_be_used() -> None:
    for client in ("tcp://127.0.0.1:1", 3, object()):
        name = type(client).__name__
        with pytest.raises(TypeError, match=f"dask.distributed.Client .* not {name}"):
            lu_factor(np.eye(3), client=client)
    with Cluster(cpus=1, gpus=0) as cluster:
        client = cluster.get_client()
        client.close()
        with pytest.raises(ValueError, match="not running: it is closed"):
            lu_factor(np.eye(3), client=client)
    with pytest.raises(ValueError, match="the cluster that was given is closed"):
        lu_factor(np.eye(3), client=cluster)


# --- memory


@pytest.mark.parametrize(
    ("device", "where"), [(-1, "the host"), (1, "GPU 1"), ("00:1B.0", "GPU 00:1B.0")]
)
def test_who_has_too_little_memory_is_told(device: int | str, where: str) -> None:
    require_room("lu", (3, 4), "f4", device, needed=10, free=10)
    wanted = f"^lu of a 3 x 4 float32 matrix needs 11 bytes on {where}, which has 10$"
    with pytest.raises(InsufficientMemoryError, match=wanted) as caught:
        require_room("lu", (3, 4), "f4", device, needed=11, free=10)
    assert caught.value.on_gpu == (device != -1)


def leave_memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the host have `size` bytes."""
    for name in (
        "hetero_la.execution.executor_choice",
        "hetero_la.planning.check_memory",
        "hetero_la.tiles.kernels.cpu.device",
    ):
        monkeypatch.setattr(importlib.import_module(name), "available_memory", lambda: size)


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize("function", [f for f in ALL if f not in (inv, qr, lstsq)])
def test_a_matrix_larger_than_the_memory(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_memory(monkeypatch, 100_000)
    wanted = (
        r"of a 200 x 200 float64 matrix needs 3\d\d,\d{3} bytes on the host, which has 100,000$"
    )
    with pytest.raises(InsufficientMemoryError, match=wanted) as caught:
        call(function, np.eye(200), nb=16)
    one_sentence(caught)
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, HeteroLAError)


@pytest.mark.usefixtures("nothing_starts")
def test_a_matrix_larger_than_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(cpus=1, gpus=0, virtual_gpus=2) as cluster:
        leave_memory(monkeypatch, 100_000)
        with pytest.raises(InsufficientMemoryError, match=r"bytes on the host, which has 100,000"):
            lu_factor(np.eye(200), nb=16, client=cluster)


def test_a_virtual_matrix_of_terabytes_is_refused_at_once() -> None:
    a = np.broadcast_to(np.float64(1), (2_000_000, 2_000_000))
    with pytest.raises(InsufficientMemoryError, match="2000000 x 2000000"):
        lu_factor(a, check_finite=False, nb=50_000, client=None, panel="cpu")


# --- plans


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("qrs", (3, 3)), "there is no routine 'qrs': did you mean 'qr'"),
     ((None, (3, 3)), "there is no routine None; there are lu, solve"),
     *(((routine, (4, 3)), rf"^{routine} needs a square matrix, not one of shape \(4, 3\)")
       for routine in ("solve", "inverse", "cholesky", "solve_positive")),
     *(((routine, (3, 4)), rf"^{routine} needs at least as many rows as columns, not \(3, 4\)")
       for routine in ("lstsq", "minimum_norm"))],
)  # fmt: skip
def test_plans_that_cannot_be_made(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hetero_la.plan(*arguments)


def test_a_singular_matrix_warns_and_has_factors() -> None:
    with pytest.warns(LinAlgWarning, match="^Diagonal number 2 is exactly zero. Singular matrix.$"):
        factors = lu_factor(np.ones((3, 3)))
    assert factors.info == 2
    assert np.array_equal(factors.lu, [[1, 1, 1], [1, 0, 0], [1, 0, 0]])


@pytest.mark.parametrize("function", ["lu_factor", "cholesky", "qr", "solve", "inv"])
def test_what_has_no_room_is_refused_before_it_is_planned(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a plan was made")

    monkeypatch.setattr("hetero_la.execution.executor_choice.make_plan", plan)
    a = np.broadcast_to(np.float64(1), (2**21, 2**21))  # 32 TiB
    arguments = (a, a[:, 0]) if function == "solve" else (a,)
    with pytest.raises(InsufficientMemoryError, match=r"needs 35,184,[0-9,]+ bytes|needs 70,368"):
        getattr(hetero_la, function)(*arguments, check_finite=False)


def test_a_completed_copy_needs_room() -> None:
    a = np.broadcast_to(np.float64(1), (2**21, 2**21))
    with pytest.raises(InsufficientMemoryError, match="completed copy"):
        hetero_la.solve(a, a[:, 0], assume_a="sym", check_finite=False)


@pytest.mark.parametrize("shape", [(5,), (5, 5, 5), 5, "55", None, (5.0, 5), (-1, 5), (True, 5),
                                   (5, np.True_), (5, None)])  # fmt: skip
def test_plans_of_shapes_that_are_none(shape: Any) -> None:
    said = f"shape must be two non-negative integers, not {re.escape(repr(shape))}$"
    with pytest.raises(ValueError, match=said):
        hetero_la.plan("lu", shape)


def test_plans_take_any_integers_as_sizes() -> None:
    given = hetero_la.plan("lu", np.array([5, 4]), nrhs=np.int64(2)).layout  # type: ignore[arg-type]
    assert given == hetero_la.plan("lu", (5, 4), nrhs=2).layout
    assert hetero_la.plan("lu", (np.int64(5), np.uint8(4))).explain().startswith("lu of a 5 x 4 ")
    for nrhs in (-1, 2.0, True, "2"):
        said = f"nrhs must be a non-negative integer, not {re.escape(repr(nrhs))}$"
        with pytest.raises(ValueError, match=said):
            hetero_la.plan("lu", (5, 5), nrhs=nrhs)  # type: ignore[arg-type]


def test_plans_of_what_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"\(-1, 3\)"):
        hetero_la.plan("qr", (-1, 3))
    with pytest.raises(ValueError, match="float16"):
        hetero_la.plan("qr", (3, 3), np.float16)


def test_tiles_are_not_larger_than_the_problem() -> None:
    a = np.eye(20)
    assert np.array_equal(hetero_la.solve(a, np.ones(20), nb=2**20), np.ones(20))
    assert hetero_la.lu_factor(a, nb=2**20).plan.nb == 20
