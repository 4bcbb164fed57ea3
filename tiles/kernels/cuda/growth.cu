// Largest entries of packed LU factors.

#include "scalar.cuh"
#include "warp.cuh"

using Size = unsigned long long;  // a double's bits

// Of a column-major block, a thread block for each column: g[0] <- max |entries below the
// diagonal|, g[1] <- max |entries from it up|.  Row i of column j is below where i > j + diagonal.
extern "C" __global__ void growth(const Scalar* __restrict__ A, Index lda, Index rows,
                                  Index diagonal, Size* g)
{
    const Index j = blockIdx.x;
    Size lower = 0, upper = 0;
    for (Index i = threadIdx.x; i < rows; i += blockDim.x) {
        const Size size = bits_of(modulus(A[i + j * lda]));
        if (i > j + diagonal) lower = size > lower ? size : lower;
        else upper = size > upper ? size : upper;
    }
    lower = warp_max(lower);
    upper = warp_max(upper);
    if (threadIdx.x % 32) return;
    atomicMax(g, lower);
    atomicMax(g + 1, upper);
}
