// Bands of square matrices of any strides: element (i, j) of A is A[i * down + j * right].

#include "scalar.cuh"

// widths[0] <- max i - j, widths[1] <- max j - i over the entries (i, j) that are not zero, where
// both were zero before.  A block of threads for each column, which looks at it from both ends, and
// no nearer to the diagonal than what other blocks have found: of a full matrix hardly anything is
// read.  Best where `down` is 1.
extern "C" __global__ void bandwidths(const Scalar* __restrict__ A, Index down, Index right,
                                      Index n, int* widths)
{
    const Index j = blockIdx.x;
    for (int above = 0; above < 2; ++above) {
        volatile int* known = widths + above;
        const Index most = above ? j : n - 1 - j;
        for (Index farthest = most; __syncthreads_or(farthest > *known); farthest -= blockDim.x) {
            const Index away = farthest - threadIdx.x;
            const Index i = above ? j - away : j + away;
            const bool found = away > 0 && !is_zero(A[i * down + j * right]);
            if (found) atomicMax(widths + above, int(away));
            if (__syncthreads_or(found)) break;
        }
    }
}

// B(upper + i - j, j) <- A(i, j) for -upper <= i - j <= lower, zero where there is no such row;
// B is column-major with lower + upper + 1 rows: LAPACK's band storage.
extern "C" __global__ void gather_band(const Scalar* __restrict__ A, Index down, Index right,
                                       Index n, Index lower, Index upper, Scalar* B)
{
    const Index rows = lower + upper + 1, step = Index(gridDim.x) * blockDim.x;
    for (Index at = Index(blockIdx.x) * blockDim.x + threadIdx.x; at < rows * n; at += step) {
        const Index j = at / rows, i = j + at % rows - upper;
        B[at] = 0 <= i && i < n ? A[i * down + j * right] : make_scalar(0);
    }
}
