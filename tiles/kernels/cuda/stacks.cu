// Kernels on stacks of square matrices, a block for each matrix.  Compiled with -DMOST (the
// largest order).

#include "scalar.cuh"

// The larger of two sizes, and NaN if one is NaN.
__device__ inline double larger(double a, double b) { return b > a || b != b ? b : a; }

// The largest size of a warp, on all its lanes.
__device__ inline double warp_largest(double x)
{
    for (int step = 16; step; step /= 2) x = larger(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

// Where sums of moduli lie: along the lines of memory (column-major), across them
// (row-major), or both, for Hermitian matrices of which a triangle is given.
enum { ALONG, ACROSS, FROM_BELOW, FROM_ABOVE };

// 1-norms.  `step` elements lie between matrices, `ld` between lines.
extern "C" __global__ void norms(const Scalar* __restrict__ A, Index step, Index ld, Index order,
                                 Index kind, double* norm)
{
    __shared__ double sums[MOST], of_warp[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int n = int(order);
    A += blockIdx.x * step;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    for (int first = 0; first < n; first += 32) {
        const int p = first + lane;
        double across = 0;
        for (int line = warp; line < n; line += warps) {
            const bool there = kind == FROM_BELOW   ? p >= line
                               : kind == FROM_ABOVE ? p <= line
                                                    : true;
            const double size = there && p < n ? modulus(A[p + line * ld]) : 0;
            if (kind != ACROSS) {
                const double along = warp_sum(size);
                if (lane == 0) atomicAdd(sums + line, along);
            }
            if (kind == ACROSS || p != line) across += size;
        }
        if (kind != ALONG && p < n) atomicAdd(sums + p, across);
    }
    __syncthreads();
    double found = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) found = larger(found, sums[i]);
    found = warp_largest(found);
    if (lane == 0) of_warp[warp] = found;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < warps; i++) found = larger(found, of_warp[i]);
    norm[blockIdx.x] = found;
}

// X = [B v], v of 1-norm 1 and of no particular direction: A^-1 v tells the size of A^-1.
extern "C" __global__ void right_hand_sides(const Scalar* __restrict__ B, Index step, Index down,
                                            Index across, Scalar* __restrict__ X, Index order,
                                            Index nrhs)
{
    B += blockIdx.x * step;
    X += blockIdx.x * order * (nrhs + 1);
    for (Index n = threadIdx.x; n < order * (nrhs + 1); n += blockDim.x) {
        const Index i = n % order, c = n / order;
        const REAL size = (REAL(1) + REAL(i) / order) / (REAL(1.5) * order - REAL(0.5));
        const bool minus = (unsigned(i) * 2654435761u >> 16) & 1;
        X[n] = c < nrhs ? B[i * down + c * across] : make_scalar(minus ? -size : size);
    }
}

// Z = phases of y = A^-1 v, the last column of X: A^-H Z is largest where columns of A^-1 are.
extern "C" __global__ void phases(const Scalar* __restrict__ X, Index order, Index nrhs, Scalar* Z)
{
    X += blockIdx.x * order * (nrhs + 1) + order * nrhs;
    Z += blockIdx.x * order;
    for (Index i = threadIdx.x; i < order; i += blockDim.x) {
        const REAL size = REAL(modulus(X[i]));
        Z[i] = size == 0 ? make_scalar(1) : scale(X[i], 1 / size);
    }
}

enum { NOT_SOLVED = 1, NOT_REFINED = 2 };

// Set in `verdict`, of zeros, whether a matrix may have a reciprocal condition number below
// `least`, or anything is not finite; and whether a backward error is above `enough` (without
// R, none is).  R = B - A X; X and Z are those of `phases`, Z times A^-H.
extern "C" __global__ void judge(const Scalar* __restrict__ X, const Scalar* __restrict__ R,
                                 const Scalar* __restrict__ Z, const double* __restrict__ norm,
                                 const int* __restrict__ info, Index order, Index nrhs,
                                 double enough, double least, int* verdict)
{
    const int lane = threadIdx.x % 32;
    const double anorm = norm[blockIdx.x];
    X += blockIdx.x * order * (nrhs + 1);
    Z += blockIdx.x * order;
    if (R) R += blockIdx.x * order * nrhs;
    int found = info[blockIdx.x] ? NOT_SOLVED : 0;
    for (Index c = threadIdx.x / 32; c <= nrhs; c += blockDim.x / 32) {
        double size = 0, left = 0, largest = 0;
        for (Index i = lane; i < order; i += 32) {
            size += modulus(X[i + c * order]);
            if (c == nrhs) largest = larger(largest, modulus(Z[i]));
            else if (R) left += modulus(R[i + c * order]);
        }
        size = warp_sum(size);
        left = warp_sum(left);
        largest = warp_largest(largest);
        if (!isfinite(size) || !isfinite(left)) found |= NOT_SOLVED;
        if (c == nrhs && !(1 / (anorm * larger(size, largest)) >= least)) found |= NOT_SOLVED;
        if (R && !(left <= enough * (anorm * size))) found |= NOT_REFINED;
    }
    if (lane == 0 && found) atomicOr(verdict + blockIdx.x, found);
}

// From the lower triangle L of A = L L^H to L U = A, L with ones on its diagonal.
extern "C" __global__ void unit_factors(Scalar* A, Index order)
{
    __shared__ REAL diagonal[MOST];
    A += blockIdx.x * order * order;
    for (Index i = threadIdx.x; i < order; i += blockDim.x) diagonal[i] = real(A[i + i * order]);
    __syncthreads();
    for (Index n = threadIdx.x; n < order * order; n += blockDim.x) {
        const Index i = n % order, j = n / order;
        if (i < j) continue;
        const Scalar l = A[n];
        A[j + i * order] = scale(conj(l), diagonal[j]);
        if (i > j) A[n] = scale(l, 1 / diagonal[j]);
    }
}

// Row orders r with A = (L U)[r], from LAPACK's swaps; a thread for each matrix.
extern "C" __global__ void inverse_orders(const int* __restrict__ ipiv, Index swaps, Index rows,
                                          Index count, int* perm, Index* orders)
{
    const Index n = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= count) return;
    ipiv += n * swaps;
    perm += n * rows;
    orders += n * rows;
    for (Index i = 0; i < rows; i++) perm[i] = int(i);
    for (Index i = 0; i < swaps; i++) {
        const int moved = perm[i];
        perm[i] = perm[ipiv[i]];
        perm[ipiv[i]] = moved;
    }
    for (Index i = 0; i < rows; i++) orders[perm[i]] = i;
}
