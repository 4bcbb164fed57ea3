// Determinants and row orders of stacks of small matrices, from their factors.

#include "scalar.cuh"
#include "warp.cuh"

// A number as a mantissa, of real and imaginary part, and a power of two.
struct Scaled {
    double re, im;
    int power;
};

__device__ inline Scaled normalized(double re, double im, int power)
{
    const double size = larger(fabs(re), fabs(im));
    if (size == 0 || !isfinite(size)) return {re, im, power};
    const int exponent = ilogb(size) + 1;
    return {ldexp(re, -exponent), ldexp(im, -exponent), power + exponent};
}

__device__ inline Scaled product(Scaled a, Scaled b)
{
    const double re = a.re * b.re - a.im * b.im, im = a.re * b.im + a.im * b.re;
    return normalized(re, im, a.power + b.power);
}

// Signs (or phases) and logarithms of determinants, and these in double precision, from packed LU
// factors; a warp for each matrix.  `info` becomes -1 where U is not finite.
extern "C" __global__ void determinants(const Scalar* LU, const int* ipiv, Index order,
                                        Scalar* sign, REAL* logarithm, double* det, int* info)
{
    const int lane = threadIdx.x, n = int(order);
    LU += blockIdx.x * order * order;
    ipiv += blockIdx.x * order;
    Scaled found = {1, 0, 0};
    bool zero = false, finite = true;
    for (int i = lane; i < n; i += 32) {
        const Scalar u = LU[i + i * order];
        zero |= is_zero(u);
        finite &= is_finite(u);
        found = product(found, normalized(real(u), imaginary(u), 0));
        if (ipiv[i] != i) found = {-found.re, -found.im, found.power};
    }
    for (int step = 16; step; step /= 2) {
        const double re = __shfl_down_sync(~0u, found.re, step);
        const double im = __shfl_down_sync(~0u, found.im, step);
        found = product(found, {re, im, __shfl_down_sync(~0u, found.power, step)});
    }
    zero = __any_sync(~0u, zero);
    finite = __all_sync(~0u, finite);
    if (lane > 0) return;
    if (zero) found = {0, 0, 0};  // even if another entry is infinite
    const double size = hypot(found.re, found.im), over = zero ? 0 : 1 / size;
    reinterpret_cast<REAL*>(sign)[COMPONENTS * blockIdx.x] = REAL(found.re * over);
    det[COMPONENTS * blockIdx.x] = ldexp(found.re, found.power);
    if (COMPONENTS == 2) {
        reinterpret_cast<REAL*>(sign)[2 * blockIdx.x + 1] = REAL(found.im * over);
        det[2 * blockIdx.x + 1] = ldexp(found.im, found.power);
    }
    logarithm[blockIdx.x] = REAL(log(size) + found.power * 0.69314718055994530942);
    if (!finite) info[blockIdx.x] = -1;
}

// Row orders with A[perm] = L U and A = (L U)[orders], from LAPACK's swaps; a thread for each
// matrix.
extern "C" __global__ void permutations(const int* __restrict__ ipiv, Index swaps, Index rows,
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
