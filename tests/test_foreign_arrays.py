"""Arrays of other libraries go in, if possible without copies, and come out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

import hetero_la
from hetero_la.tiles.arrays.errors import DeviceUnavailableError
from hetero_la.tiles.arrays.foreign import is_foreign, to_native
from tests.support import DTYPES, host, positive, random

# JAX takes most of a GPU's memory otherwise.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

N = 6


class Tensor:
    """An array of a library that has only DLPack, with NumPy's memory, or CuPy's, beneath it."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __dlpack__(self, **wanted: Any) -> Any:
        return self.held.__dlpack__(**wanted)

    def __dlpack_device__(self) -> tuple[int, int]:
        place: tuple[int, int] = self.held.__dlpack_device__()
        return place


class StandardArray(Tensor):
    """An array of the array API's standard, on one of several devices, that cannot be written."""

    def __init__(self, held: Any, device: str = "first") -> None:
        super().__init__(held)
        self.device = device

    def to_device(self, device: str) -> StandardArray:
        return StandardArray(self.held, device)

    @staticmethod
    def __array_namespace__() -> ModuleType:
        return STANDARD


class WithoutDlpack:
    """An array of the array API that NumPy reads by its buffer alone."""

    def __init__(self, held: NDArray) -> None:
        self.held = held

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return self.held

    @staticmethod
    def __array_namespace__() -> Any:
        return COPYING


def module(name: str, **attributes: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(attributes)
    return made


def adopt(array: Any) -> Any:
    """NumPy's or CuPy's array in the memory of another, as a library's `from_dlpack` does it."""
    return array if hasattr(array, "get") else np.from_dlpack(array)


COPYING = module("copying", asarray=WithoutDlpack)
TENSORS = module("tensors", from_dlpack=lambda array: Tensor(adopt(array)))
STANDARD = module("standard", from_dlpack=lambda array: StandardArray(adopt(array)))
Tensor.__module__ = "tensors.core"


@pytest.fixture(autouse=True)
def _tensors_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensors", TENSORS)


Kind = Callable[[Any], Any]


@pytest.fixture(params=[Tensor, StandardArray, WithoutDlpack, "torch", "jax"])
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """What makes an array of a kind from NumPy's; of libraries that are not installed, none."""
    if request.param == "jax":
        jax = pytest.importorskip("jax")
        with jax.enable_x64(True):
            yield jax.numpy.asarray
    elif request.param == "torch":
        yield pytest.importorskip("torch").from_numpy
    else:
        yield request.param


def values(a: Any) -> NDArray:
    return host(a.held) if hasattr(a, "held") else np.asarray(a)


def same(found: Any, expected: Any, cls: type) -> None:
    """Arrays are of one class, and have the values of NumPy's; numbers are numbers."""
    if isinstance(expected, tuple):
        assert type(found) is type(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, cls)
    elif isinstance(expected, np.ndarray):
        assert type(found) is cls
        assert values(found).dtype == expected.dtype
        np.testing.assert_array_equal(values(found), expected)
    else:
        assert type(found) is type(expected)
        assert found == expected


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "lu_factor": lambda a, b, p: hetero_la.lu_factor(a),
    "lu_solve": lambda a, b, p: hetero_la.lu_solve(hetero_la.lu_factor(a), b, trans=1),
    "LUFactors": lambda a, b, p: hetero_la.lu_factor(a, nb=2).solve(b),
    "lu": lambda a, b, p: hetero_la.lu(a),
    "solve": lambda a, b, p: hetero_la.solve(a, b=b),
    "inv": lambda a, b, p: hetero_la.inv(a),
    "det": lambda a, b, p: hetero_la.det(a),
    "slogdet": lambda a, b, p: hetero_la.slogdet(a),
    "cholesky": lambda a, b, p: hetero_la.cholesky(p, lower=True),
    "cho_solve": lambda a, b, p: hetero_la.cho_solve(hetero_la.cho_factor(p), b),
    "CholeskyFactors": lambda a, b, p: hetero_la.cho_factor(p, lower=True).solve(b),
    "logdet": lambda a, b, p: hetero_la.cho_factor(p).logdet(),
    "qr": lambda a, b, p: hetero_la.qr(a, mode="raw"),
    "qr_multiply": lambda a, b, p: hetero_la.qr_multiply(a, b, mode="left"),
    "QRFactors": lambda a, b, p: hetero_la.qr_factor(a).solve(b),
    "multiply": lambda a, b, p: hetero_la.qr_factor(a).multiply(b, adjoint=True),
    "r": lambda a, b, p: hetero_la.qr_factor(a).r,
    "lstsq": lambda a, b, p: hetero_la.lstsq(a, b),
    "lists": lambda a, b, p: hetero_la.solve(a, [1.0] * N),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_goes_in_comes_out(call: Callable[..., Any], kind: Kind) -> None:
    given = random(N, N, "float64"), random(N, 2, "float64", 1), positive(N, "float64")
    cls = type(kind(given[0]))
    same(call(*map(kind, given)), call(*given), cls)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_stacks_and_empty_arrays(dtype: str, kind: Kind) -> None:
    cls = type(kind(np.eye(2)))
    for a in (random(N, N, dtype), np.stack([random(3, 3, dtype)] * 2), np.zeros((0, 0), dtype)):
        same(hetero_la.inv(kind(a)), hetero_la.inv(a), cls)
        same(hetero_la.qr(kind(a)), hetero_la.qr(a), cls)


def test_memory_is_shared_and_kept() -> None:
    a = np.asfortranarray(random(N, N, "float64"))
    given = a.copy(order="F")
    assert np.shares_memory(to_native(Tensor(given)), given)
    hetero_la.inv(Tensor(given))
    assert np.array_equal(given, a)
    factors = hetero_la.lu_factor(Tensor(given), overwrite_a=True)
    writeable = to_native(Tensor(given)).flags.writeable  # not by NumPy 2.1
    assert np.shares_memory(factors.lu.held, given) is writeable


def test_read_only_memory_is_not_written() -> None:
    class Frozen(Tensor):
        def __dlpack__(self, **wanted: Any) -> Any:
            return self.held.__dlpack__(**{**wanted, "max_version": (1, 0)})

    Frozen.__module__ = "tensors"
    a = np.asfortranarray(random(N, N, "float64"))
    given = a.copy(order="F")
    given.flags.writeable = False
    factors = hetero_la.lu_factor(Frozen(given), overwrite_a=True)
    assert np.array_equal(given, a)
    assert not np.shares_memory(factors.lu.held, given)


def test_arrays_of_jax_are_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory can be written, but they are immutable."""
    monkeypatch.setitem(sys.modules, "jaxlib", TENSORS)
    immutable = type("ArrayImpl", (Tensor,), {"__module__": "jaxlib"})
    a = np.asfortranarray(random(N, N, "float64"))
    given = a.copy(order="F")
    hetero_la.lu_factor(immutable(given), True)
    hetero_la.lu_factor(immutable(given), overwrite_a=True)
    assert np.array_equal(given, a)


def test_results_are_on_the_device_of_the_arguments() -> None:
    a = StandardArray(random(N, N, "float64"), "second")
    assert hetero_la.lu_factor(a).piv.device == "second"


def test_a_kind_that_nothing_makes_comes_out_as_numpy_s() -> None:
    methods = {name: vars(Tensor)[name] for name in ("__init__", "__dlpack__", "__dlpack_device__")}
    unknown = type("Unknown", (), {"__module__": "nowhere", **methods})
    assert type(hetero_la.solve(unknown(np.eye(2)), np.ones(2))) is np.ndarray


@pytest.mark.parametrize("other", [np.ones(2), StandardArray(np.ones(2)), da.ones(2)])
def test_arrays_of_two_libraries_are_refused(other: Any) -> None:
    names = rf"tensors\.Tensor and \w+\.{type(other).__name__}"
    with pytest.raises(
        TypeError, match=f"^the arrays of a call must be of one library, not {names}"
    ):
        hetero_la.solve(Tensor(np.eye(2)), other)


def test_what_is_taken_as_it_is() -> None:
    for a in (np.eye(2), np.float32(1), [1], 1.0, None, da.ones(2), np.ma.ones(2), "text"):
        assert not is_foreign(a)


# --- labels


def test_labels_are_left_out() -> None:
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    a, b = random(N, N, "float64"), random(N, 1, "float64")[:, 0]
    expected = hetero_la.solve(a, b)
    for given in (pandas.DataFrame(a), xarray.DataArray(a, dims=("row", "column"))):
        for right in (b, pandas.Series(b), xarray.DataArray(b)):
            same(hetero_la.solve(given, right), expected, np.ndarray)
    lazy = hetero_la.solve(xarray.DataArray(da.from_array(a)), b)
    assert isinstance(lazy, da.Array)
    numbers = pandas.DataFrame(a).astype("Float64")
    same(hetero_la.solve(numbers, pandas.Series(b).convert_dtypes()), expected, np.ndarray)
    assert hetero_la.inv(numbers.astype("Float32")).dtype == np.float32
    numbers.iloc[0, 0] = pandas.NA
    with pytest.raises(ValueError, match="must not contain infs or NaNs"):
        hetero_la.solve(numbers, b)
    with pytest.raises(TypeError, match=r"has dtype object, .* use astype\('float64'\)"):
        hetero_la.solve(pandas.DataFrame([["1", "2"], ["3", "5"]]), b[:2])
    with pytest.raises(TypeError, match="has dtype object"):
        hetero_la.inv(pandas.DataFrame({"x": ["a", "b"], "y": [1, 2]}))


# --- what is no array of numbers


@pytest.mark.parametrize("make", [scipy.sparse.eye_array, scipy.sparse.identity])
def test_sparse_arrays_are_refused(make: Callable[[int], Any]) -> None:
    for call in (hetero_la.inv, lambda a: hetero_la.solve(np.eye(3), a)):
        with pytest.raises(TypeError, match=r"is sparse: convert it .* toarray\(\)"):
            call(make(3).tocsr())


def test_a_sparse_array_beside_ours_is_refused_as_sparse() -> None:
    module = ModuleType("sparse")
    attributes = {"__module__": "sparse", "__array_namespace__": lambda self: module}
    with pytest.raises(TypeError, match=r"a COO is sparse: convert it .* toarray\(\)"):
        hetero_la.solve(np.eye(2), type("COO", (), attributes)())


def test_gradients_layouts_and_places_are_refused() -> None:
    for attributes, said in (
        ({"requires_grad": True}, r"requires gradients, .* pass its detach\(\)"),
        ({"layout": "torch.sparse_coo"}, r"layout torch.sparse_coo is not dense: .* to_dense\(\)"),
        ({"__dlpack_device__": lambda self: (8, 0)}, r"cannot be read \(DLPack's device type 8\)"),
    ):
        given = type("Odd", (Tensor,), {"__module__": "tensors", **attributes})(np.eye(2))
        with pytest.raises(TypeError, match=said):
            hetero_la.inv(given)
    tracer = type("Tracer", (Tensor,), {"__module__": "jax.core"})(np.eye(2))
    with pytest.raises(TypeError, match=r"a Tracer has no values inside jax\.jit"):
        hetero_la.inv(tracer)


def test_a_dtype_that_cannot_be_exchanged_is_refused() -> None:
    def fail(self: Any, **wanted: Any) -> None:
        raise BufferError("bfloat16 is not for all.")

    attributes = {"__module__": "tensors", "__dlpack__": fail, "dtype": "bfloat16"}
    given = type("Short", (Tensor,), attributes)(np.eye(2))
    said = r"^a Short of dtype bfloat16 cannot be read \(bfloat16 is not for all\): copy it to .*32"
    with pytest.raises(TypeError, match=said):
        hetero_la.inv(given)


def test_an_array_on_a_gpu_takes_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    cls = type("Far", (Tensor,), {"__dlpack_device__": lambda self: (2, 0), "__module__": "x"})
    with pytest.raises(DeviceUnavailableError, match=r"is on a GPU, which takes CuPy: install"):
        to_native(cls(np.eye(2)))


# --- the libraries themselves


def test_torch_says_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    for given, said in (
        (torch.eye(2, requires_grad=True), r"^a Tensor requires gradients"),
        (torch.eye(2).to_sparse(), r"^a Tensor with layout torch\.sparse_coo is not dense"),
        (torch.eye(2, device="meta"), r"device meta cannot be read .*: copy it to the host"),
        (torch.eye(2, dtype=torch.bfloat16), r"dtype torch\.bfloat16, .* as float32"),
    ):
        with pytest.raises(TypeError, match=said):
            hetero_la.inv(given)


def test_torch_s_views_are_resolved() -> None:
    torch = pytest.importorskip("torch")
    a = torch.from_numpy(random(N, N, "complex128"))
    same(hetero_la.inv(a.conj()), hetero_la.inv(a.numpy().conj()), torch.Tensor)
    same(hetero_la.inv(a.conj().imag), hetero_la.inv(-a.numpy().imag), torch.Tensor)
    assert torch.equal(hetero_la.det(a.mT.mT[None]), hetero_la.det(a[None]))


def test_jax_says_what_to_do() -> None:
    jax = pytest.importorskip("jax")
    for transform in (jax.jit, jax.grad):
        with pytest.raises(TypeError, match=r"no values inside jax\.jit, jax\.grad"):
            transform(lambda a: hetero_la.inv(a).sum())(jax.numpy.eye(2))


# --- GPUs


class OnlyCuda:
    """An array that has `__cuda_array_interface__` alone, as those of Numba."""

    def __init__(self, held: Any) -> None:
        self.held = held

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self.held.__cuda_array_interface__
        return interface


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_tensors_on_a_gpu_stay_there(call: Callable[..., Any], dtype: str) -> None:
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    given = random(N, N, dtype), random(N, 2, dtype, 1), positive(N, dtype)
    if call is CALLS["lists"]:
        pytest.skip("a list is on the host")
    found = call(*(torch.from_numpy(a).cuda() for a in given))
    expected = call(*map(cupy.asarray, given))

    def compare(one: Any, other: Any) -> None:
        if isinstance(other, tuple):
            for pair in zip(one, other, strict=True):
                compare(*pair)
        elif isinstance(other, cupy.ndarray):
            assert one.device.type == "cuda"
            assert np.allclose(one.cpu().numpy(), other.get(), rtol=1e-3, atol=1e-3)
        else:
            assert type(one) is type(other)

    compare(found, expected)


@pytest.mark.gpu
def test_memory_of_a_gpu_is_shared() -> None:
    torch = pytest.importorskip("torch")
    a = torch.rand(N, N, dtype=torch.float64, device="cuda")
    assert to_native(a).data.ptr == a.data_ptr()
    x = hetero_la.inv(a)
    assert torch.allclose(a @ x, torch.eye(N, dtype=torch.float64, device="cuda"))
    assert torch.allclose(hetero_la.inv(a.mT.contiguous().mT), x)


@pytest.mark.gpu
def test_what_the_libraries_have_enqueued_is_waited_for() -> None:
    """Both ways: tensors that are still computed go in, and results come out, on a stream each."""
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    n = 1500
    seed = torch.rand(n, n, dtype=torch.float64, device="cuda")
    torch.cuda.synchronize()
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()), cupy.cuda.Stream(non_blocking=True):
            a = seed
            for _ in range(20):  # milliseconds of work that nobody waits for here
                a = a @ seed / n
            a = a + n * torch.eye(n, dtype=torch.float64, device="cuda")
            x = hetero_la.inv(a)
            error = (a @ x - torch.eye(n, dtype=torch.float64, device="cuda")).abs().max()
            assert float(error) < 1e-10


@pytest.mark.gpu
def test_arrays_with_cuda_s_interface_alone() -> None:
    cupy = pytest.importorskip("cupy")
    a = cupy.asarray(random(N, N, "float64"))
    assert to_native(OnlyCuda(a)).data.ptr == a.data.ptr
    found = hetero_la.inv(OnlyCuda(a))
    assert isinstance(found, cupy.ndarray)
    assert cupy.array_equal(found, hetero_la.inv(a))
    assert isinstance(hetero_la.solve(OnlyCuda(a), cupy.ones(N)), cupy.ndarray)


@pytest.mark.gpu
def test_jax_on_a_gpu() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    a = jax.numpy.eye(N) + jax.numpy.ones((N, N))
    x = hetero_la.inv(a)
    assert x.device == a.device
    assert jax.numpy.allclose(a @ x, jax.numpy.eye(N), atol=1e-5)
