// Rows of a row-major matrix in another order: of those that move, each is read and written once.
//
// A block has 32 columns, and a thread ENTRIES rows of one of them: all are read before one of them
// is written.
//
// Compiled with -DENTRIES=, for at most 32 ENTRIES rows that move.

extern "C" __global__ void __launch_bounds__(1024)
    swap_rows(double* a, long long ld, long long columns, const int* to, const int* whence,
              long long moves)
{
    const long long column = 32 * (long long)blockIdx.x + threadIdx.x;
    const long long here = column < columns ? moves : 0;
    double held[ENTRIES];
#pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        const int move = threadIdx.y + 32 * e;
        if (move < here) held[e] = a[whence[move] * ld + column];
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        const int move = threadIdx.y + 32 * e;
        if (move < here) a[to[move] * ld + column] = held[e];
    }
}
