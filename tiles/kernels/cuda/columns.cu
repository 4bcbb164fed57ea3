// Kernels on columns of a matrix.  Compiled with -DENTRIES (moves that a thread holds).

#include "pivots.cuh"
#include "scalar.cuh"

// Each block loads the rows that move of one column, and then stores them.
__device__ inline void move_rows(Scalar* __restrict__ A, Index lda, Index columns,
                                 const int (&to)[ENTRIES], const int (&from)[ENTRIES])
{
    for (Index c = blockIdx.x; c < columns; c += gridDim.x) {
        Scalar* column = A + c * lda;
        Scalar value[ENTRIES];
#pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            if (to[e] >= 0) value[e] = column[from[e]];
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            if (to[e] >= 0) column[to[e]] = value[e];
        }
    }
}

// The moves of `net`, at most ENTRIES a thread.
extern "C" __global__ void swap_net(Scalar* A, Index lda, Index columns,
                                    const int* __restrict__ net, Index ldn, Index entries)
{
    int to[ENTRIES], from[ENTRIES];
#pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        const Index i = threadIdx.x + e * blockDim.x;
        to[e] = i < entries ? net[i * ldn] : -1;
        from[e] = i < entries ? net[i * ldn + 1] : 0;
    }
    move_rows(A, lda, columns, to, from);
}

// The same straight from the pivots, less `offset`: for a panel's own swaps,
// where one launch is cheaper than two.  At most 2 pivots a thread.
extern "C" __global__ void swap_pivots(Scalar* A, Index lda, Index columns,
                                       const int* __restrict__ ipiv, Index w, Index offset)
{
    __shared__ int p[ENTRIES / 2 * 1024], self[ENTRIES / 2 * 1024];
    Link link[ENTRIES / 2];
    for (int i = threadIdx.x; i < w; i += blockDim.x) p[i] = ipiv[i] - int(offset);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < ENTRIES / 2; e++) {
        const int i = threadIdx.x + e * blockDim.x;
        if (i < w) {
            link[e] = {-1, -1, false};
            scan_pivots(link[e], p, 0, int(w), i, p[i]);
            self[i] = link[e].self;
        }
    }
    __syncthreads();
    int to[ENTRIES], from[ENTRIES];
#pragma unroll
    for (int e = 0; e < ENTRIES / 2; e++) {
        const int i = threadIdx.x + e * blockDim.x;
        Moves moves = {{-1, -1}, {0, 0}};
        if (i < w) moves = find_moves(self, link[e].same, link[e].repeats, int(w), i, p[i]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            to[2 * e + n] = moves.to[n];
            from[2 * e + n] = moves.from[n];
        }
    }
    move_rows(A, lda, columns, to, from);
}

// Swap after swap, a thread a column: slow, and without limit on the pivots.
extern "C" __global__ void swap_serial(Scalar* A, Index lda, Index columns,
                                       const int* __restrict__ ipiv, Index w, Index offset)
{
    const Index c = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    Scalar* column = A + c * lda;
    for (Index i = 0; i < w; i++) {
        const Index p = ipiv[i] - offset;
        const Scalar value = column[i];
        column[i] = column[p];
        column[p] = value;
    }
}

// T <- A[perm]; a thread takes one row of several columns.
extern "C" __global__ void gather_rows(const int* __restrict__ perm, const Scalar* __restrict__ A,
                                       Index lda, Scalar* __restrict__ T, Index rows, Index columns)
{
    const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    const Scalar* source = A + perm[i];
    const Index c0 = Index(blockIdx.y) * 8;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        if (c0 + c < columns) T[i + (c0 + c) * rows] = source[(c0 + c) * lda];
    }
}

// B = A^T, A of `rows` rows, by blocks of 32 x 32, read and written along columns: of one
// matrix, or of several that are `step_a` and `step_b` elements apart.
extern "C" __global__ void turn(const Scalar* __restrict__ A, Index lda, Index step_a, Index rows,
                                Index columns, Scalar* __restrict__ B, Index ldb, Index step_b)
{
    __shared__ Scalar square[32][33];
    const Index down = (rows + 31) / 32, across = (columns + 31) / 32;
    const Index row = blockIdx.x % down * 32, column = blockIdx.x / down % across * 32;
    const Index matrix = blockIdx.x / (down * across);
    A += matrix * step_a;
    B += matrix * step_b;
    const int lane = threadIdx.x % 32, step = blockDim.x / 32;
    for (int c = threadIdx.x / 32; c < 32; c += step) {
        if (row + lane < rows && column + c < columns) {
            square[c][lane] = A[row + lane + (column + c) * lda];
        }
    }
    __syncthreads();
    for (int r = threadIdx.x / 32; r < 32; r += step) {
        if (row + r < rows && column + lane < columns) {
            B[column + lane + (row + r) * ldb] = square[lane][r];
        }
    }
}
