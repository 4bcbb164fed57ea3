// Householder vectors of a matrix with orthonormal columns.
// All but reflect_leaf take a block for a column, or for a row of a lower triangle.

#include "scalar.cuh"
#include "warp.cuh"

constexpr int LANES = 32;  // columns of a leaf

// A step of an elimination on a row, whose first entry becomes its multiplier where `active`,
// and moves to the end: a loop over columns is then no longer than one of its steps.
__device__ inline void eliminate(Scalar (&x)[LANES], const Scalar* pivot_row, Scalar reciprocal,
                                 bool active)
{
    const Scalar first = active ? multiply(x[0], reciprocal) : x[0];
    const Scalar factor = active ? first : make_scalar(0);
#pragma unroll
    for (int c = 1; c < LANES; c++) x[c - 1] = subtract_product(factor, pivot_row[c], x[c]);
    x[LANES - 1] = first;
}

__device__ inline void take_row(Scalar (&x)[LANES], const Scalar* row, Index ld, Index w)
{
#pragma unroll
    for (int c = 0; c < LANES; c++) x[c] = c < w ? row[c * ld] : make_scalar(0);
}

__device__ inline void keep_row(const Scalar (&x)[LANES], Scalar* row, Index ld, Index w)
{
#pragma unroll
    for (int c = 0; c < LANES; c++) {
        if (c < w) row[c * ld] = x[c];
    }
}

// S - D <- V U without pivoting in the first w <= LANES columns: V unit lower, U upper.  D
// has the signs that put each pivot away from zero, by one at least where S has orthonormal
// columns.  One block: a warp takes the square at the top, a lane a row, and then every
// thread rows of what is below.
extern "C" __global__ void __launch_bounds__(256)
    reflect_leaf(Scalar* S, Index lds, Index rows, Index w, REAL* signs)
{
    __shared__ Scalar upper[LANES][LANES];  // pivot rows, each from its pivot on, then zeros
    __shared__ Scalar reciprocal[LANES];
    const int lane = threadIdx.x;
    Scalar x[LANES];
    if (lane < LANES) {
        take_row(x, S + lane, lds, lane < w ? w : 0);
#pragma unroll 1
        for (int j = 0; j < w; j++) {
            if (lane == j) {
                signs[j] = real(x[0]) >= 0 ? REAL(-1) : REAL(1);
                x[0] = subtract_product(make_scalar(1), make_scalar(signs[j]), x[0]);
                reciprocal[j] = divide(make_scalar(1), x[0]);
#pragma unroll
                for (int c = 0; c < LANES; c++) upper[j][c] = j + c < w ? x[c] : make_scalar(0);
            }
            __syncwarp();
            eliminate(x, upper[j], reciprocal[j], lane > j);
        }
#pragma unroll 1
        for (int j = w; j < LANES; j++) eliminate(x, upper[0], make_scalar(0), false);
        keep_row(x, S + lane, lds, lane < w ? w : 0);
    }
    __syncthreads();
    for (Index row = w + lane; row < rows; row += blockDim.x) {
        take_row(x, S + row, lds, w);
#pragma unroll 1
        for (int j = 0; j < w; j++) eliminate(x, upper[j], reciprocal[j], true);
#pragma unroll 1
        for (int j = w; j < LANES; j++) eliminate(x, upper[0], make_scalar(0), false);
        keep_row(x, S + row, lds, w);
    }
}

// U <- -U D and zeros below its diagonal; unit <- (P^-1 U)^H below its diagonal of ones, P the
// diagonal of U; tau <- -D P.  U comes from S.
extern "C" __global__ void split_reflectors(const Scalar* __restrict__ S, Index lds,
                                            const REAL* __restrict__ signs, Scalar* U, Scalar* unit,
                                            Scalar* tau)
{
    const Index c = blockIdx.x, w = gridDim.x;
    for (Index i = threadIdx.x; i < w; i += blockDim.x) {
        const Scalar entry = S[i + c * lds], signed_entry = scale(entry, -signs[c]);
        U[i + c * w] = i <= c ? signed_entry : make_scalar(0);
        if (i < c) unit[c + i * w] = conj(divide(entry, S[i + i * lds]));
        if (i == c) tau[c] = signed_entry;
    }
}

// Norms of the columns whose inner products are G.
extern "C" __global__ void column_norms(const Scalar* __restrict__ G, Index w, double* norms)
{
    const Index c = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c < w) norms[c] = sqrt(double(real(G[c * (w + 1)])));
}

// The rows of the lower triangle W, divided by the conjugates of `pivots` where there are any;
// the state is marked where the sum over a row, weighted by `norms` where there are any, passes
// the bound or is not a number.  A warp takes a row.
extern "C" __global__ void check_rows(Scalar* W, Index w, const Scalar* __restrict__ pivots,
                                      Index pivot_step, const double* __restrict__ norms,
                                      double bound, int* state)
{
    const Index row = blockIdx.x;
    double sum = 0;
    for (Index c = threadIdx.x; c <= row; c += blockDim.x) {
        Scalar entry = W[row + c * w];
        if (pivots) W[row + c * w] = entry = divide(entry, conj(pivots[row * pivot_step]));
        sum += norms ? norms[c] * modulus(entry) : modulus(entry);
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0 && !(sum <= bound)) atomicOr(state, 1);
}

extern "C" __global__ void clear_upper(Scalar* L, Index w)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i < c; i += blockDim.x) L[i + c * w] = make_scalar(0);
}

// R's rows times the signs; done <- whether nothing has gone wrong: neither the state, which
// becomes zero again, nor the infos are marked.
extern "C" __global__ void conclude(Scalar* R, Index ldr, const REAL* __restrict__ signs,
                                    int* state, const int* __restrict__ infos, int* done)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i <= c; i += blockDim.x) {
        R[i + c * ldr] = scale(R[i + c * ldr], signs[i]);
    }
    if (c == 0 && threadIdx.x == 0) *done = !atomicExch(state, 0) && !infos[0] && !infos[1];
}
