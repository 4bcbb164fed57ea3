// What follows from the factors of small square matrices, a block for each matrix.  Compiled with
// -DMOST (the largest order) and -DGROUP.

#include "rows.cuh"

// A vector of 1-norm 1 and of no particular direction: A^-1 v tells the size of A^-1.
__device__ inline Scalar probe(int i, int n)
{
    const REAL size = (REAL(1) + REAL(i) / n) / (REAL(1.5) * n - REAL(0.5));
    const bool minus = (unsigned(i) * 2654435761u >> 16) & 1;
    return make_scalar(minus ? -size : size);
}

__device__ inline Scalar phase(Scalar x)
{
    const REAL size = REAL(modulus(x));
    return size == 0 ? make_scalar(1) : scale(x, 1 / size);
}

// What a block finds of A^-1.
struct Inverse {
    const Scalar* factors;
    int n;
    Index kind;
    Group<1>& group;
    Candidates& candidates;
    double* of_warp;

    // x <- A^-1 x, or A^-H x; returns its 1-norm, to all threads.
    __device__ __noinline__ double apply(Scalar& x, bool adjoint) const
    {
        Scalar row[1] = {x};
        solve_with(factors, n, adjoint && kind == PLAIN ? ADJOINT : kind, row, group);
        x = row[0];
        return block_sum(modulus(x), of_warp);
    }

    // Where x is largest, and how large.
    __device__ int find_largest(Scalar x, double& largest) const
    {
        const int row = threadIdx.x;
        const Bits key = row < n ? magnitude_key(REAL(modulus(x))) : 0;
        const int where = lowest_of_largest(key, row, candidates);
        if (row == where) of_warp[0] = modulus(x);
        __syncthreads();
        largest = of_warp[0];
        __syncthreads();
        return where;
    }
};

// LAPACK's estimate of ||A^-1||_1 (Higham, ACM TOMS 14, 1988), begun with x = A^-1 v, of which
// `size` is the 1-norm, and with where A^-H phase(x) is largest.
__device__ inline double inverse_norm(const Inverse& inverse, double size, int where)
{
    const int row = threadIdx.x, n = inverse.n;
    for (int step = 2; step <= 5; step++) {
        Scalar x = make_scalar(row == where);
        const double next = inverse.apply(x, false);
        if (!(next > size)) break;
        size = next;
        x = row < n ? phase(x) : make_scalar(0);
        inverse.apply(x, true);
        const int last = where;
        double largest;
        where = inverse.find_largest(x, largest);
        if (where == last) break;
    }
    const REAL other = 1 + REAL(row) / max(n - 1, 1);
    Scalar x = make_scalar(row >= n ? REAL(0) : row % 2 ? -other : other);
    return larger(size, inverse.apply(x, false) / (1.5 * n));
}

// Estimates of reciprocal condition numbers from the 1-norms of A, which are infinite where it is
// not factored.  Where two solves find that one is at least `sure`, no more are made.
extern "C" __global__ void __launch_bounds__(MOST, BLOCKS<1>)
    condition(const Scalar* factors, Index kind, Index order, const double* norm, double sure,
              double* rcond)
{
    __shared__ Group<1> group;
    __shared__ Candidates candidates;
    __shared__ double of_warp[32];
    const int row = threadIdx.x, n = int(order);
    const double anorm = norm[blockIdx.x];
    if (!isfinite(anorm)) {
        if (row == 0) rcond[blockIdx.x] = 0;
        return;
    }
    const Inverse inverse = {
        factors + blockIdx.x * order * order, n, kind, group, candidates, of_warp};
    Scalar x = row < n ? probe(row, n) : make_scalar(0);
    double size = inverse.apply(x, false), largest;
    x = row < n ? phase(x) : make_scalar(0);
    inverse.apply(x, true);
    const int where = inverse.find_largest(x, largest);
    if (!(1 / (anorm * larger(size, largest)) >= sure)) size = inverse_norm(inverse, size, where);
    if (row == 0) rcond[blockIdx.x] = 1 / (anorm * larger(size, largest));
}

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
