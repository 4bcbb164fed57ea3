// Norms of matrices of any strides, in double precision, and what tells how good a solution is:
// element (i, j) of A is A[i * down + j * right].  Columns of X, R and F are contiguous.

#include "scalar.cuh"
#include "warp.cuh"

constexpr int WARPS = 8, TILE = 32;  // blocks are of 32 x 8 threads
constexpr int MOST = 8;              // columns of a product

// Raise *largest, which is not negative, to x; NaN counts as larger than all numbers, as its bits
// are.
__device__ inline void raise(double* largest, double x)
{
    atomicMax(reinterpret_cast<unsigned long long*>(largest),
              static_cast<unsigned long long>(__double_as_longlong(fabs(x))));
}

// The sum of the moduli of a column of n elements, on lane 0 of a warp.
__device__ inline double sum_by_warp(const Scalar* column, Index n)
{
    double sum = 0;
#pragma unroll 4
    for (Index i = threadIdx.x; i < n; i += 32) sum += modulus(column[i]);
    return warp_sum(sum);
}

// *norm <- ||A||_1, A of m x n, where it was 0.  A warp for a column if columns are contiguous,
// and otherwise a thread of each warp of a block.
extern "C" __global__ void norm1(const Scalar* __restrict__ A, Index down, Index right, Index m,
                                 Index n, double* norm)
{
    __shared__ double part[WARPS][32];
    if (down == 1) {
        const Index j = Index(blockIdx.x) * WARPS + threadIdx.y;
        if (j >= n) return;
        const double sum = sum_by_warp(A + j * right, m);
        if (threadIdx.x == 0) raise(norm, sum);
        return;
    }
    const Index j = Index(blockIdx.x) * 32 + threadIdx.x;
    double sum = 0;
    if (j < n) {
#pragma unroll 4
        for (Index i = threadIdx.y; i < m; i += WARPS) sum += modulus(A[i * down + j * right]);
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || j >= n) return;
    for (int warp = 1; warp < WARPS; warp++) sum += part[warp][threadIdx.x];
    raise(norm, sum);
}

// *found <- 1 if one of `outer` runs of `inner` real numbers, `step` apart, holds NaN or infinity.
extern "C" __global__ void find_not_finite(const REAL* __restrict__ A, Index inner, Index outer,
                                           Index step, int* found)
{
    const Index threads = Index(gridDim.x) * 32 * WARPS;
    const Index thread = (Index(blockIdx.x) * WARPS + threadIdx.y) * 32 + threadIdx.x;
    bool bad = false;
    for (Index j = blockIdx.y; j < outer; j += gridDim.y) {
#pragma unroll 4
        for (Index i = thread; i < inner; i += threads) bad |= !isfinite(A[i + j * step]);
    }
    if (bad) *found = 1;
}

// *error <- the largest ||r||_1 / (*norm ||x||_1) of a column x of X and r of R, where it was 0; a
// column x of zeros has none.  A block for a column.
extern "C" __global__ void backward_error(const Scalar* __restrict__ X, Index ldx, Index n,
                                          const Scalar* __restrict__ R, Index ldr, Index m,
                                          const double* norm, double* error)
{
    __shared__ double sums[2][WARPS];
    double size = 0, rest = 0;
    const Index first = threadIdx.y * 32 + threadIdx.x;
#pragma unroll 4
    for (Index i = first; i < n; i += 32 * WARPS) size += modulus(X[i + blockIdx.x * ldx]);
#pragma unroll 4
    for (Index i = first; i < m; i += 32 * WARPS) rest += modulus(R[i + blockIdx.x * ldr]);
    size = warp_sum(size);
    rest = warp_sum(rest);
    if (threadIdx.x == 0) {
        sums[0][threadIdx.y] = size;
        sums[1][threadIdx.y] = rest;
    }
    __syncthreads();
    if (threadIdx.x || threadIdx.y) return;
    for (int warp = 1; warp < WARPS; warp++) {
        size += sums[0][warp];
        rest += sums[1][warp];
    }
    size *= *norm;
    if (size != 0) raise(error, rest / size);
}

// What of a matrix counts: all, or a triangle; its diagonal as it is, its real part, ones or zeros.
enum Part { WHOLE, LOWER, UPPER };
enum Diagonal { AS_IS, REAL_PART, ONES, ZEROS };

// The products of row i of a matrix, or of its conjugate, from column `first` to `last` by `step`,
// with p columns of X, and those of their moduli.
__device__ inline void multiply_row(const Scalar* __restrict__ row, Index right, int diagonal,
                                    int conjugate, Index i, Index first, Index last, Index step,
                                    const Scalar* __restrict__ X, Index ldx, int p,
                                    Scalar (&sums)[MOST], double (&moduli)[MOST])
{
#pragma unroll 4
    for (Index j = first; j < last; j += step) {
        Scalar a = row[j * right];
        if (conjugate) a = conj(a);
        if (diagonal != AS_IS && i == j) {
            a = make_scalar(diagonal == REAL_PART ? real(a) : REAL(diagonal == ONES));
        }
        const double size = modulus(a);
#pragma unroll
        for (int c = 0; c < MOST; c++) {
            if (c >= p) break;
            const Scalar x = X[j + c * ldx];
            sums[c] = add_product(a, x, sums[c]);
            moduli[c] = fma(size, modulus(x), moduli[c]);
        }
    }
}

// A X and |A| |X| for a part of A, or of its conjugate, and p <= MOST columns of X, as sums over
// gridDim.y times `columns` of A: the sum k of row i and column c is at [(k p + c) m + i].  A warp
// for a row if rows are contiguous, and otherwise a thread.
extern "C" __global__ void products_and_moduli(const Scalar* __restrict__ A, Index down,
                                               Index right, int part, int diagonal, int conjugate,
                                               Index m, Index n, const Scalar* __restrict__ X,
                                               Index ldx, int p, Index columns, Scalar* products,
                                               double* sizes)
{
    const bool by_rows = right == 1 && down != 1;
    const Index warp = Index(blockIdx.x) * WARPS + threadIdx.y;
    const Index i = by_rows ? warp : warp * 32 + threadIdx.x;
    if (i >= m) return;
    Index first = blockIdx.y * columns, last = min(first + columns, n);
    if (part == LOWER) last = min(last, i + 1);
    if (part == UPPER) first = max(first, i);
    Scalar sums[MOST];
    double moduli[MOST];
    for (int c = 0; c < MOST; c++) sums[c] = make_scalar(0), moduli[c] = 0;
    if (by_rows) first += threadIdx.x;
    multiply_row(A + i * down, right, diagonal, conjugate, i, first, last, by_rows ? 32 : 1, X, ldx,
                 p, sums, moduli);
#pragma unroll
    for (int c = 0; c < MOST; c++) {
        if (c >= p) break;
        if (by_rows) {
            sums[c] = warp_sum(sums[c]);
            moduli[c] = warp_sum(moduli[c]);
            if (threadIdx.x) continue;
        }
        const Index at = (Index(blockIdx.y) * p + c) * m + i;
        products[at] = sums[c];
        sizes[at] = moduli[c];
    }
}

// *largest <- the largest modulus of the upper trapezoid of A, of m x n and column-major, where it
// was 0; NaN counts as larger than all numbers.  A warp for a column.
extern "C" __global__ void largest_of_upper(const Scalar* __restrict__ A, Index lda, Index m,
                                            Index n, double* largest)
{
    const Index j = Index(blockIdx.x) * WARPS + threadIdx.y;
    if (j >= n) return;
    const Index rows = min(j + 1, m);
    unsigned long long bits = 0;
#pragma unroll 4
    for (Index i = threadIdx.x; i < rows; i += 32) {
        bits = max(bits, bits_of(modulus(A[i + j * lda])));
    }
    bits = warp_max(bits);
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned long long*>(largest), bits);
}

// w[j] <- 1 / ||x||_1 for column j of X, with a random sign.  A warp for a column.
extern "C" __global__ void signed_weights(const Scalar* __restrict__ X, Index ldx, Index n,
                                          Scalar* w)
{
    const Index j = Index(blockIdx.x) * WARPS + threadIdx.y;
    if (j >= n) return;
    const double sum = sum_by_warp(X + j * ldx, n);
    unsigned bits = unsigned(j) * 2654435761u;
    bits = (bits ^ (bits >> 16)) * 2246822519u;
    if (threadIdx.x == 0) w[j] = make_scalar(REAL(bits >> 31 ? -1 / sum : 1 / sum));
}

// Part of the lower triangle of A, from (top, left) on, to shared memory; by the threads that make
// the accesses coalesced.
__device__ inline void load_lower(const Scalar* __restrict__ A, Index down, Index right, Index n,
                                  Index top, Index left, Scalar (*tile)[TILE + 1])
{
    for (int k = threadIdx.y; k < TILE; k += WARPS) {
        const int i = right == 1 ? k : threadIdx.x, j = right == 1 ? threadIdx.x : k;
        const Index row = top + i, column = left + j;
        if (row < n && row >= column) tile[j][i] = A[row * down + column * right];
    }
}

// F <- `count` columns, from `first` on, of the Hermitian matrix whose lower triangle A holds.
extern "C" __global__ void hermitian_columns(const Scalar* __restrict__ A, Index down, Index right,
                                             Index n, Index first, Index count, Scalar* F)
{
    __shared__ Scalar below[TILE][TILE + 1], above[TILE][TILE + 1];
    const Index top = Index(blockIdx.x) * TILE, left = first + Index(blockIdx.y) * TILE;
    load_lower(A, down, right, n, top, left, below);
    load_lower(A, down, right, n, left, top, above);
    __syncthreads();
    const Index i = top + threadIdx.x;
    for (int k = threadIdx.y; k < TILE; k += WARPS) {
        const Index j = left + k;
        if (i >= n || j >= first + count) continue;
        const Scalar own = below[k][threadIdx.x];
        F[i + (j - first) * n] = i > j    ? own
                                 : i == j ? make_scalar(real(own))
                                          : conj(above[threadIdx.x][k]);
    }
}

// Each of `count` matrices, `apart` elements apart, becomes symmetric, or Hermitian if `conjugate`,
// from its lower triangle.
extern "C" __global__ void complete(Scalar* A, Index down, Index right, Index apart, Index n,
                                    Index count, int conjugate)
{
    if (blockIdx.y > blockIdx.x) return;
    __shared__ Scalar below[TILE][TILE + 1];
    const Index top = Index(blockIdx.x) * TILE, left = Index(blockIdx.y) * TILE;
    for (Index matrix = blockIdx.z; matrix < count; matrix += gridDim.z) {
        Scalar* own = A + matrix * apart;
        load_lower(own, down, right, n, top, left, below);
        __syncthreads();
        for (int k = threadIdx.y; k < TILE; k += WARPS) {
            const int i = right == 1 ? threadIdx.x : k, j = right == 1 ? k : threadIdx.x;
            const Index row = top + i, column = left + j;
            if (row >= n || row < column || (row == column && !conjugate)) continue;
            const Scalar x = below[j][i];
            own[column * down + row * right] = !conjugate      ? x
                                               : row == column ? make_scalar(real(x))
                                                               : conj(x);
        }
        __syncthreads();
    }
}

// The upper bits of the larger part of x, which are ordered as moduli are; of infinity and NaN
// those of the exponent 2047 or 255.
__device__ inline int upper_bits(Scalar x)
{
#if COMPLEX
    const REAL part = fmax(fabs(x.re), fabs(x.im));
    const REAL found = isfinite(x.re) && isfinite(x.im) ? part : fabs(x.re) + fabs(x.im);
#else
    const REAL found = fabs(x);
#endif
    return sizeof(REAL) == 8 ? __double2hiint(found) : __float_as_int(found);
}

__device__ inline int warp_max(int x)
{
    for (int apart = 16; apart > 0; apart /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

// by_row[i], by_column[j] <- the largest `upper_bits` in row i and column j, if they are larger, of
// A or, where there are exponents, of A scaled.  A thread for each row of a block, which goes
// through some columns.
extern "C" __global__ void largest_bits(const Scalar* __restrict__ A, Index lda, Index m, Index n,
                                        int* by_row, int* by_column, Index columns,
                                        const int* row_exponents, const int* column_exponents)
{
    const Index row = (Index(blockIdx.x) * WARPS + threadIdx.y) * 32 + threadIdx.x;
    const Index first = blockIdx.y * columns, last = min(first + columns, n);
    const int exponent = row_exponents && row < m ? row_exponents[row] : 0;
    int mine = 0;
#pragma unroll 4
    for (Index column = first; column < last; column++) {
        Scalar x = row < m ? A[row + column * lda] : Scalar{};
        if (row_exponents) x = times_power_of_two(x, exponent + column_exponents[column]);
        const int bits = upper_bits(x);
        mine = max(mine, bits);
        const int found = warp_max(bits);
        if (threadIdx.x == 0 && found > by_column[column]) atomicMax(&by_column[column], found);
    }
    if (row < m) atomicMax(&by_row[row], mine);
}
