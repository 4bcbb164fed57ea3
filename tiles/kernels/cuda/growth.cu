// Largest entries of packed LU factors.

#include "scalar.cuh"

using Bits =
    unsigned long long;  // non-negative doubles are ordered as their bits are, NaN above all

__device__ inline Bits warp_max(Bits x)
{
    for (int step = 16; step; step /= 2) {
        const Bits other = __shfl_xor_sync(~0u, x, step);
        x = other > x ? other : x;
    }
    return x;
}

// Of a column-major block, a thread block for each column: g[0] <- max |entries below the
// diagonal|, g[1] <- max |entries from it up|.  Row i of column j is below where i > j + diagonal.
extern "C" __global__ void growth(const Scalar* __restrict__ A, Index lda, Index rows,
                                  Index diagonal, Bits* g)
{
    const Index j = blockIdx.x;
    Bits lower = 0, upper = 0;
    for (Index i = threadIdx.x; i < rows; i += blockDim.x) {
        const Bits size = __double_as_longlong(modulus(A[i + j * lda]));
        if (i > j + diagonal) lower = size > lower ? size : lower;
        else upper = size > upper ? size : upper;
    }
    lower = warp_max(lower);
    upper = warp_max(upper);
    if (threadIdx.x % 32) return;
    atomicMax(g, lower);
    atomicMax(g + 1, upper);
}
