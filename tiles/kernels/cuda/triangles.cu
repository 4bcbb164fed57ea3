// What surrounds the leaves of a QR panel.  Compiled with -DPAIRED (columns of T that a
// block of join_pairs finds) and -DMOST (columns of the diagonal blocks that it joins).
// All but join_pairs take a block for a column.

#include "scalar.cuh"

// Exponents of a column within which squares do not overflow, and what underflows of them
// is far below rounding error.
constexpr int SAFE = sizeof(REAL) == 8 ? 400 : 20;

// The column's largest magnitude, on all threads; NaN does not count.
__device__ inline REAL largest(const Scalar* column, Index rows)
{
    __shared__ REAL of_warp[32];
    const REAL* words = reinterpret_cast<const REAL*>(column);
    REAL found = 0;
#pragma unroll 4
    for (Index i = threadIdx.x; i < rows * COMPONENTS; i += blockDim.x) {
        found = fmax(found, fabs(words[i]));
    }
    for (int step = 16; step; step /= 2) {
        found = fmax(found, __shfl_xor_sync(~0u, found, step));
    }
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = found;
    __syncthreads();
    for (int n = 0; n < blockDim.x / 32; n++) found = fmax(found, of_warp[n]);
    return found;
}

// Columns whose squares might over- or underflow are brought near 1, exactly: by powers
// of two, whose exponents stay behind for `unscale`.
extern "C" __global__ void scale_columns(Scalar* A, Index lda, Index rows, int* exponents)
{
    Scalar* column = A + blockIdx.x * lda;
    const REAL size = largest(column, rows);
    const int found = size == 0 || isinf(size) ? 0 : ilogb(size);
    const int exponent = abs(found) <= SAFE ? 0 : found;
    if (threadIdx.x == 0) exponents[blockIdx.x] = exponent;
    if (exponent == 0) return;
    for (Index i = threadIdx.x; i < rows; i += blockDim.x) {
        column[i] = times_power_of_two(column[i], -exponent);
    }
}

extern "C" __global__ void unscale(Scalar* R, Index ldr, const int* __restrict__ exponents)
{
    const int exponent = exponents[blockIdx.x];
    if (exponent == 0) return;
    Scalar* column = R + blockIdx.x * ldr;
    for (Index i = threadIdx.x; i <= blockIdx.x; i += blockDim.x) {
        column[i] = times_power_of_two(column[i], exponent);
    }
}

// What is above diagonal blocks of so many columns goes from A, where V has zeros, to R;
// zeros below the blocks of R and T.
extern "C" __global__ void move_upper(Scalar* A, Index lda, Scalar* R, Index ldr, Scalar* T,
                                      Index ldt, Index block)
{
    const Index j = blockIdx.x, top = j / block * block;
    for (Index i = threadIdx.x; i < top; i += blockDim.x) {
        R[i + j * ldr] = A[i + j * lda];
        A[i + j * lda] = make_scalar(0);
        R[j + i * ldr] = T[j + i * ldt] = make_scalar(0);
    }
}

// T12 <- -T1 G12 T2 for diagonal blocks 0 and 1, 2 and 3, ... of T, G = V^H V; the last
// block may be narrower.  blockIdx.y is the pair's number.
extern "C" __global__ void join_pairs(Scalar* T, Index ldt, const Scalar* __restrict__ G, Index ldg,
                                      Index order, Index block)
{
    __shared__ Scalar product[PAIRED][MOST];  // G12 T2
    const Index first = 2 * block * blockIdx.y, middle = first + block;
    const Index begin = middle + blockIdx.x * PAIRED;
    const Index end = min(begin + PAIRED, min(middle + block, order));
    const int count = int(end - begin);
    if (count <= 0) return;
    for (Index i = threadIdx.x; i < block; i += blockDim.x) {
        Scalar sum[PAIRED] = {};
#pragma unroll 4
        for (Index k = middle; k < end; k++) {
            const Scalar g = G[first + i + k * ldg];
#pragma unroll
            for (int c = 0; c < PAIRED; c++) {
                if (c < count) sum[c] = add_product(g, T[k + (begin + c) * ldt], sum[c]);
            }
        }
#pragma unroll
        for (int c = 0; c < PAIRED; c++) product[c][i] = sum[c];
    }
    __syncthreads();
    for (Index i = threadIdx.x; i < block; i += blockDim.x) {
        Scalar sum[PAIRED] = {};
#pragma unroll 4
        for (Index k = i / 32 * 32; k < block; k++) {
            const Scalar t = T[first + i + (first + k) * ldt];
#pragma unroll
            for (int c = 0; c < PAIRED; c++) sum[c] = subtract_product(t, product[c][k], sum[c]);
        }
#pragma unroll
        for (int c = 0; c < PAIRED; c++) {
            if (c < count) T[first + i + (begin + c) * ldt] = sum[c];
        }
    }
}

extern "C" __global__ void copy_upper(const Scalar* __restrict__ R, Index ldr, Scalar* A, Index lda)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i <= c; i += blockDim.x) A[i + c * lda] = R[i + c * ldr];
}

// V from what copy_upper has packed: ones on the diagonal, zeros above it.
extern "C" __global__ void copy_reflectors(const Scalar* __restrict__ A, Index lda, Scalar* V,
                                           Index ldv, Index rows)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i < rows; i += blockDim.x) {
        V[i + c * ldv] = i > c ? A[i + c * lda] : make_scalar(i == c);
    }
}
