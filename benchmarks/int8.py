"""Products of FP64 from products of INT8, beside those of cuBLAS, as updates of a factorization.

    python benchmarks/int8.py --k 1024 2048 4096
    python benchmarks/int8.py --k 2048 4096 --dtype complex128

C <- C - A B by the second scheme of Ozaki, Uchino and Imamura (2025): rows of A and columns of B
are scaled to integers; their product, which is exact, is found modulo each of some coprime numbers
of 8 bits by tensor cores, and put together by the Chinese remainder theorem.  A complex product
takes three real ones modulo each number, at no loss of accuracy.  Rates count the operations of the
product in FP64; errors are in eps of the largest |A| |B|, where some rows and columns cross.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import Any

import harness
import numpy as np

#: Coprime numbers; products of residues, which have at most 7 bits and a sign, fit into 32 bits.
MODULI = (
    256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193, 191, 181,
)  # fmt: skip
_TILE = 32
_R_8I, _R_32I = 3, 10  #: Of cudaDataType.
_SOURCE = r"""
// Residues of trunc(2^e a) of a matrix, with k contiguous; `turned`: its rows become contiguous.
// Complex matrices are given as real ones, twice as tall; they get planes of real and imaginary
// parts and of their sums.
extern "C" __global__ void residues(const double *a, long lead, int rows, int k, int turned,
                                    const int *exponents, signed char *planes, long plane)
{
    __shared__ double tile[PARTS][TILE][TILE + 1];
    int i = blockIdx.x * TILE + threadIdx.x, j = blockIdx.y * TILE + threadIdx.y;
    // The matrix is rows x k if turned, else k x rows; i runs down its columns.
    int down = turned ? rows : k, across = turned ? k : rows;
    for (int p = 0; p < PARTS; p++) {
        double entry = i < down && j < across ? a[PARTS * (i + j * lead) + p] : 0;
        int vector = turned ? i : j;
        tile[p][threadIdx.y][threadIdx.x] =
            vector < rows ? trunc(scalbn(entry, exponents[vector])) : 0;
    }
    __syncthreads();
    int along = turned ? blockIdx.y * TILE + threadIdx.x : i;
    int vector = turned ? blockIdx.x * TILE + threadIdx.y : j;
    if (along >= k || vector >= rows) return;
    double part[3];
    for (int p = 0; p < PARTS; p++)
        part[p] = turned ? tile[p][threadIdx.x][threadIdx.y] : tile[p][threadIdx.y][threadIdx.x];
    if (PARTS == 2) part[2] = part[0] + part[1];
#pragma unroll
    for (int t = 0; t < COUNT; t++)
        for (int p = 0; p < PLANES; p++) {
            double rest = fma(-MODULUS[t], rint(part[p] * (1.0 / MODULUS[t])), part[p]);
            planes[(t * PLANES + p) * plane + vector * (long)k + along] = (signed char)(int)rest;
        }
}

__device__ __forceinline__ int residue(int x, int t)
{
    int modulus = (int)MODULUS[t], rest = x % modulus;
    return rest < 0 ? rest + modulus : rest;
}

// The number below P in absolute value that has these remainders.
__device__ __forceinline__ double joined(const int *rests)
{
    double high = 0, low = 0;
#pragma unroll
    for (int t = 0; t < COUNT; t++) {
        high = fma(HIGH[t], (double)rests[t], high);
        low = fma(LOW[t], (double)rests[t], low);
    }
    double times = rint(high * (1.0 / P_HIGH));
    return fma(-P_HIGH, times, high) + fma(-P_LOW, times, low);
}

extern "C" __global__ void subtract(double *c, long lead, int m, int n, const int *products,
                                    long plane, const int *left, const int *right)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y;
    if (i >= m) return;
    long at = i + j * (long)m;
    int scale = -(left[i] + right[j]);
    int rests[PARTS][COUNT];
#pragma unroll
    for (int t = 0; t < COUNT; t++) {
        int first = products[(t * PLANES) * plane + at];
        if (PARTS == 1) rests[0][t] = residue(first, t);
        else {
            int second = products[(t * PLANES + 1) * plane + at];
            int third = residue(products[(t * PLANES + 2) * plane + at], t);
            rests[0][t] = residue(first - second, t);
            rests[PARTS - 1][t] = residue(third - residue(first, t) - residue(second, t), t);
        }
    }
    for (int p = 0; p < PARTS; p++)
        c[PARTS * (i + j * lead) + p] -= scalbn(joined(rests[p]), scale);
}
"""


def _constants(count: int) -> tuple[int, dict[str, list[float]]]:
    """Return the product P of the moduli, and weights of remainders in exact halves."""
    moduli = MODULI[:count]
    product = math.prod(moduli)
    weights = [product // m * pow(product // m, -1, m) for m in moduli]
    unit = 1 << (product.bit_length() - 53 + 13)  # sums of `count` weights by 8 bits have 53
    high = [float(w // unit * unit) for w in (*weights, product)]
    low = [float(w % unit) for w in (*weights, product)]
    return product, {"MODULUS": [float(m) for m in moduli], "HIGH": high, "LOW": low}


def code(parts: int, count: int) -> str:
    """Return the kernels for real matrices, of one part, or complex ones, of two."""
    _, constants = _constants(count)
    *high, p_high = constants["HIGH"]
    *low, p_low = constants["LOW"]
    arrays = {"MODULUS": constants["MODULUS"], "HIGH": high, "LOW": low}
    lists = "".join(
        f"__device__ constexpr double {name}[COUNT] = {{{', '.join(map(repr, values))}}};\n"
        for name, values in arrays.items()
    )
    macros = {
        "PARTS": parts, "PLANES": 2 * parts - 1, "COUNT": count, "TILE": _TILE,
        "P_HIGH": repr(p_high), "P_LOW": repr(p_low),
    }  # fmt: skip
    return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + lists + _SOURCE


class Int8Product:
    """C <- C - A B of column-major matrices on the current GPU."""

    def __init__(self, dtype: str, count: int, m: int, n: int, k: int, width: int) -> None:
        import cupy

        self.cupy, self.shape, self.width = cupy, (m, n, k), min(width, n)
        self.parts = 2 if dtype.startswith("complex") else 1
        self.planes = count * (2 * self.parts - 1)
        self.product, _ = _constants(count)
        module = cupy.RawModule(code=code(self.parts, count))
        self.residues, self.subtract = map(module.get_function, ("residues", "subtract"))
        self.left = cupy.empty((self.planes, m, k), np.int8)
        self.right = cupy.empty((self.planes, n, k), np.int8)
        self.products = cupy.empty((self.planes, self.width, m), np.int32)

    def _bits(self) -> int:
        """Return the bits of integers with which products stay below P / 2.

        Beyond 51, the rounding of a quotient by a modulus could be seen in its remainder.
        """
        terms = self.shape[2] * (4 if self.parts == 2 else 1)
        return min((self.product.bit_length() - 2 - math.ceil(math.log2(terms))) // 2, 51)

    def _split(self, a: Any, planes: Any, turned: bool) -> Any:
        """Fill planes with residues of a matrix; return exponents of its rows or columns."""
        cupy = self.cupy
        largest = abs(a.real).max(axis=int(turned))
        if self.parts == 2:
            largest = cupy.maximum(largest, abs(a.imag).max(axis=int(turned)))
        exponents = (self._bits() - cupy.frexp(largest)[1]).astype(np.int32)
        rows, k = planes.shape[1:]
        down, across = a.shape
        grid = (-(-down // _TILE), -(-across // _TILE))
        lead = np.int64(a.strides[1] // a.itemsize)
        self.residues(
            grid, (_TILE, _TILE),
            (a, lead, np.int32(rows), np.int32(k), np.int32(turned), exponents, planes,
             np.int64(rows * k)),
        )  # fmt: skip
        return exponents

    def __call__(self, a: Any, b: Any, c: Any) -> None:
        """Enqueue C <- C - A B."""
        m, n, _ = self.shape
        left = self._split(a, self.left, turned=True)
        right = self._split(b, self.right, turned=False)
        lead = np.int64(c.strides[1] // c.itemsize)
        for start in range(0, n, self.width):
            width = min(self.width, n - start)
            self._multiply(start, width)
            part = c[:, start:]
            self.subtract(
                (-(-m // 128), width), (128,),
                (part, lead, np.int32(m), np.int32(width), self.products,
                 np.int64(self.width * m), left, right[start:]),
            )  # fmt: skip

    def _multiply(self, start: int, width: int) -> None:
        """Enqueue the products of residues, for some columns."""
        from cupy_backends.cuda.libs import cublas

        m, n, k = self.shape
        one, zero = np.ones(1, np.int32), np.zeros(1, np.int32)
        cublas.gemmStridedBatchedEx(
            self.cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N,
            m, width, k, one.ctypes.data,
            self.left.data.ptr, _R_8I, k, m * k,
            self.right.data.ptr + start * k, _R_8I, k, n * k, zero.ctypes.data,
            self.products.data.ptr, _R_32I, m, self.width * m,
            self.planes, cublas.CUBLAS_COMPUTE_32I, cublas.CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )  # fmt: skip


def _random(shape: tuple[int, int], dtype: str, seed: int) -> Any:
    import cupy

    rng = cupy.random.default_rng(seed)
    real, *imaginary = (rng.random(shape[::-1]).T - 0.5 for _ in range(1 + (dtype != "float64")))
    return cupy.asfortranarray(real + 1j * imaginary[0] if imaginary else real)


def _error(result: Any, a: Any, b: Any) -> float:
    """Return the largest error of -A B in some rows and columns."""
    rows, columns = (slice(None, None, max(length // 24, 1)) for length in result.shape)
    left, right, found = a[rows].get(), b[:, columns].get(), result[rows, columns].get()
    exact = left.astype(np.clongdouble) @ right.astype(np.clongdouble)
    unit = np.finfo(np.float64).eps * (abs(left) @ abs(right)).max()
    return float(abs(found + exact).max() / unit)


def _native(dtype: str) -> Any:
    """Return C <- C - A B by cuBLAS."""
    from cupy import cublas

    return lambda a, b, c: cublas.gemm("N", "N", a, b, c, -1.0, 1.0)


def measure(dtype: str, n: int, k: int, count: int, repeats: int) -> dict[str, Any]:
    """Return rates and errors of both products."""
    import cupy

    a, b = _random((n, k), dtype, 1), _random((k, n), dtype, 2)
    c = cupy.zeros((n, n), dtype, order="F")
    ours = Int8Product(dtype, count, n, n, k, 4096)
    native = _native(dtype)
    contenders = {"int8": lambda: ours(a, b, c), "native": lambda: native(a, b, c)}
    errors, taken = {}, {name: [] for name in contenders}
    for name, call in contenders.items():
        c[...] = 0
        call()
        errors[name] = _error(c, a, b)
    for _ in range(repeats):
        for name, call in contenders.items():
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record()
            for _ in range(3):
                call()
            end.record()
            end.synchronize()
            taken[name].append(1e-3 * cupy.cuda.get_elapsed_time(begin, end) / 3)
    operations = (8 if dtype == "complex128" else 2) * n * n * k
    rates = {name: operations / statistics.median(times) for name, times in taken.items()}
    return {"dtype": dtype, "n": n, "k": k, "moduli": count, "rate": rates, "error": errors}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--k", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--dtype", choices=("float64", "complex128"), default="float64")
    parser.add_argument("--moduli", type=int, nargs="+", default=[14, 15])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    rows = []
    for k in args.k:
        for count in args.moduli:
            row = measure(args.dtype, args.n, k, count, args.repeats)
            rates, errors = row["rate"], row["error"]
            print(
                f"{args.dtype:<11}n = {args.n}, k = {k:<5} {count} moduli: "
                f"{rates['int8'] / 1e12:6.1f} Tflop/s, native {rates['native'] / 1e12:6.1f} "
                f"({rates['int8'] / rates['native']:.2f}); errors {errors['int8']:.2g}, "
                f"{errors['native']:.2g} eps", flush=True,
            )  # fmt: skip
            rows.append(row)
    harness.write_json(rows, args.json)


if __name__ == "__main__":
    main()
