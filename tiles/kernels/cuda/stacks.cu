// Kernels on stacks of square matrices, a block for each matrix.  Compiled with -DMOST (the
// largest order) and -DGROUP.

#include "rows.cuh"

// The larger of two sizes, and NaN if one is NaN.
__device__ inline double larger(double a, double b) { return b > a || b != b ? b : a; }

// The largest size of a warp, on all its lanes.
__device__ inline double warp_largest(double x)
{
    for (int step = 16; step; step /= 2) x = larger(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

// The sum over a block, for all its threads.
__device__ inline double block_sum(double x, double* of_warp)
{
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < blockDim.x / 32; i++) x += of_warp[i];
    __syncthreads();
    return x;
}

// Where sums of moduli lie: along the lines of memory (column-major), across them
// (row-major), or both, for Hermitian matrices of which a triangle is given.
enum { ALONG, ACROSS, FROM_BELOW, FROM_ABOVE };

// The 1-norm, on thread 0, of a matrix with `ld` elements from line to line.
__device__ inline double norm1(const Scalar* __restrict__ A, Index ld, int n, Index kind)
{
    __shared__ double sums[MOST], of_warp[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
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
    for (int i = 0; i < warps; i++) found = larger(found, of_warp[i]);
    return found;
}

// 1-norms.  `step` elements lie between matrices.
extern "C" __global__ void norms(const Scalar* A, Index step, Index ld, Index order, Index kind,
                                 double* norm)
{
    const double found = norm1(A + blockIdx.x * step, ld, int(order), kind);
    if (threadIdx.x == 0) norm[blockIdx.x] = found;
}

// Set in `verdict` whether a matrix of this 1-norm is not factored, or whether with its inverse X
// the reciprocal condition number is below `least`.
extern "C" __global__ void judge_inverse(const Scalar* X, Index order, const double* norm,
                                         const int* info, double least, int* verdict)
{
    const double found = norm1(X + blockIdx.x * order * order, order, int(order), ALONG);
    if (threadIdx.x > 0) return;
    verdict[blockIdx.x] = info[blockIdx.x] || !(1 / (norm[blockIdx.x] * found) >= least);
}

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

    // x <- A^-1 x; returns its 1-norm, to all threads.
    __device__ double apply(Scalar (&x)[1])
    {
        solve_with(factors, n, kind, x, group);
        return block_sum(modulus(x[0]), of_warp);
    }

    // x <- A^-H x; returns where it is largest, and how large.
    __device__ int apply_adjoint(Scalar (&x)[1], double& largest)
    {
        solve_with(factors, n, kind == PLAIN ? ADJOINT : kind, x, group);
        const int row = threadIdx.x;
        const Bits key = row < n ? magnitude_key(REAL(modulus(x[0]))) : 0;
        const int where = lowest_of_largest(key, row, candidates);
        if (row == where) of_warp[0] = modulus(x[0]);
        __syncthreads();
        largest = of_warp[0];
        __syncthreads();
        return where;
    }
};

// LAPACK's estimate of ||A^-1||_1 (Higham, ACM TOMS 14, 1988), from x = A^-1 v, of which `size` is
// the 1-norm, and from where A^-H phase(x) is largest.
__device__ inline double inverse_norm(Inverse& inverse, Scalar (&x)[1], double size, int where)
{
    const int row = threadIdx.x, n = inverse.n;
    for (int step = 2; step <= 5; step++) {
        x[0] = make_scalar(row == where);
        const double next = inverse.apply(x);
        if (!(next > size)) break;
        size = next;
        x[0] = row < n ? phase(x[0]) : make_scalar(0);
        const int last = where;
        double largest;
        where = inverse.apply_adjoint(x, largest);
        if (where == last) break;
    }
    const REAL other = 1 + REAL(row) / max(n - 1, 1);
    x[0] = make_scalar(row >= n ? REAL(0) : row % 2 ? -other : other);
    return larger(size, inverse.apply(x) / (1.5 * n));
}

// Set in `verdict` whether a matrix is not factored, or its reciprocal condition number is below
// `least`; where two solves find that it is at least `sure`, no more are made.
extern "C" __global__ void __launch_bounds__(MOST)
    condition(const Scalar* factors, Index kind, Index order, const double* norm, const int* info,
              double least, double sure, int* verdict)
{
    __shared__ Group<1> group;
    __shared__ Candidates candidates;
    __shared__ double of_warp[32];
    const int row = threadIdx.x, n = int(order);
    if (info[blockIdx.x]) {
        if (row == 0) verdict[blockIdx.x] = 1;
        return;
    }
    const double anorm = norm[blockIdx.x];
    Inverse inverse = {factors + blockIdx.x * order * order, n, kind, group, candidates, of_warp};
    Scalar x[1] = {row < n ? probe(row, n) : make_scalar(0)};
    double size = inverse.apply(x), largest;
    x[0] = row < n ? phase(x[0]) : make_scalar(0);
    const int where = inverse.apply_adjoint(x, largest);
    if (!(1 / (anorm * larger(size, largest)) >= sure))
        size = inverse_norm(inverse, x, size, where);
    if (row == 0) verdict[blockIdx.x] = !(1 / (anorm * larger(size, largest)) >= least);
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
