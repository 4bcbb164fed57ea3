// Least squares with the QR factors of a stack, a block for each matrix.  Compiled with
// -DTHREADS (the most of a block).

#include "scalar.cuh"
#include "warp.cuh"

// Sweeps from which singular values count as not found: 6 to 12 are usual.
constexpr int MOST_SWEEPS = 30;

struct Product {
    double re, im;
};

#if COMPLEX
// conj(a) b
__device__ inline Product inner(Scalar a, Scalar b)
{
    return {double(a.re) * b.re + double(a.im) * b.im, double(a.re) * b.im - double(a.im) * b.re};
}
__device__ inline Scalar conj_over(Product x, double by)
{
    return {REAL(x.re / by), REAL(-x.im / by)};
}
#else
__device__ inline Product inner(Scalar a, Scalar b) { return {double(a) * b, 0}; }
__device__ inline Scalar conj_over(Product x, double by) { return REAL(x.re / by); }
#endif

// Make two columns orthogonal, by a warp; return whether they were not, to `tolerance`.
__device__ inline bool rotate(Scalar* x, Scalar* y, int n, double tolerance)
{
    double xx = 0, yy = 0;
    Product xy = {0, 0};
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        const Product one = inner(x[i], y[i]);
        xx += inner(x[i], x[i]).re;
        yy += inner(y[i], y[i]).re;
        xy.re += one.re;
        xy.im += one.im;
    }
    xx = warp_sum_on_all(xx);
    yy = warp_sum_on_all(yy);
    xy = {warp_sum_on_all(xy.re), COMPONENTS == 2 ? warp_sum_on_all(xy.im) : 0};
    const double size = hypot(xy.re, xy.im);
    if (!(size > tolerance * sqrt(xx) * sqrt(yy))) return false;
    const double zeta = (yy - xx) / (2 * size);
    const double t = copysign(1 / (fabs(zeta) + sqrt(1 + zeta * zeta)), zeta);
    const double c = 1 / sqrt(1 + t * t);
    // Corrections instead of c x - s y (Rutishauser): rounding errors are as small as angles.
    const REAL s = REAL(c * t), tau = REAL(c * t / (1 + c));
    const Scalar turn = conj_over(xy, size);  // makes x^H y positive
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        const Scalar a = x[i], b = multiply(turn, y[i]);
        x[i] = add(a, scale(add(b, scale(a, tau)), -s));
        y[i] = add(b, scale(add(a, scale(b, -tau)), s));
    }
    return true;
}

// Singular values, in no order, of upper triangles R, by one-sided Jacobi rotations of the
// columns of R^H; NaN if there are too many sweeps.  Squares of R must not leave the range.
// The columns are in `work`, or in shared memory if that is 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    singular_values(const Scalar* __restrict__ R, Index order, double tolerance, Scalar* work,
                    double* __restrict__ values)
{
    extern __shared__ double2 shared[];
    const int n = int(order), players = n + n % 2;  // of a tournament: each pair meets once
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    Scalar* G = work ? work + blockIdx.x * order * order : reinterpret_cast<Scalar*>(shared);
    R += blockIdx.x * order * order;
    for (Index e = threadIdx.x; e < order * order; e += blockDim.x) {
        const Index i = e % order, j = e / order;
        G[e] = i < j ? make_scalar(0) : conj(R[j + i * order]);
    }
    int sweep = 0;
    for (; sweep < MOST_SWEEPS; sweep++) {
        int rotated = 0;
        for (int round = 0; round < players - 1; round++) {
            __syncthreads();
            for (int pair = warp; pair < players / 2; pair += warps) {
                const int p = (round + pair) % (players - 1);
                const int q = pair ? (round + players - 1 - pair) % (players - 1) : players - 1;
                if (q < n) rotated |= rotate(G + p * order, G + q * order, n, tolerance);
            }
        }
        if (!__syncthreads_or(rotated)) break;
    }
    for (int j = warp; j < n; j += warps) {
        double sum = 0;
        for (int i = lane; i < n; i += 32) sum += inner(G[i + j * order], G[i + j * order]).re;
        sum = warp_sum_on_all(sum);
        if (lane == 0) values[blockIdx.x * order + j] = sweep < MOST_SWEEPS ? sqrt(sum) : nan("");
    }
}

// Overwrite the first rows of B with R^-1 B, or with R^-H B if `adjoint`; `squares` are those
// of the norms of the columns of the other rows.
extern "C" __global__ void substitute(const Scalar* __restrict__ R, Index order, Index adjoint,
                                      Scalar* B, Index rows, Index nrhs, double* squares)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    R += blockIdx.x * order * order;
    for (Index c = threadIdx.x / 32; c < nrhs; c += warps) {
        Scalar* x = B + (blockIdx.x * nrhs + c) * rows;
        for (Index k = 0; k < order; k++) {
            const Index j = adjoint ? k : order - 1 - k;
            const Scalar pivot = R[j + j * order];
            const Scalar found = divide(x[j], adjoint ? conj(pivot) : pivot);
            __syncwarp();
            if (lane == 0) x[j] = found;
            if (adjoint) {
                for (Index i = j + 1 + lane; i < order; i += 32) {
                    x[i] = subtract_product(conj(R[j + i * order]), found, x[i]);
                }
            } else {
                for (Index i = lane; i < j; i += 32) {
                    x[i] = subtract_product(R[i + j * order], found, x[i]);
                }
            }
            __syncwarp();
        }
        double sum = 0;
        for (Index i = order + lane; i < rows; i += 32) sum += inner(x[i], x[i]).re;
        sum = warp_sum(sum);
        if (lane == 0) squares[blockIdx.x * nrhs + c] = sum;
    }
}
