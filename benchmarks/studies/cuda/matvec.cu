// y = A x, for dense, banded and sparse matrices, by a thread or a warp for each row.
//
// Compiled with -DREAL=float|double.

__device__ inline long long thread() { return blockIdx.x * (long long)blockDim.x + threadIdx.x; }

// The sum over the threads of a warp, in its first one.
__device__ inline REAL sum_of_warp(REAL sum)
{
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_down_sync(0xffffffffu, sum, apart);
    return sum;
}

// Dense, entry (i, j) at i `down` + j `right`: row-major or column-major.
extern "C" __global__ void dense_by_threads(const REAL* a, long long down, long long right,
                                            const REAL* x, REAL* y, long long m, long long n)
{
    const long long i = thread();
    if (i >= m) return;
    REAL sum = 0;
    for (long long j = 0; j < n; j++) sum += a[i * down + j * right] * x[j];
    y[i] = sum;
}

extern "C" __global__ void dense_by_warps(const REAL* a, long long down, long long right,
                                          const REAL* x, REAL* y, long long m, long long n)
{
    const long long i = thread() / 32;
    if (i >= m) return;
    REAL sum = 0;
    for (long long j = threadIdx.x % 32; j < n; j += 32) sum += a[i * down + j * right] * x[j];
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) y[i] = sum;
}

// Banded of order n, a diagonal a row: entry (i, j) is in row upper + i - j, column j, as LAPACK
// has it.
extern "C" __global__ void band_by_threads(const REAL* band, long long lower, long long upper,
                                           const REAL* x, REAL* y, long long n)
{
    const long long i = thread();
    if (i >= n) return;
    const long long first = i < lower ? 0 : i - lower, last = i + upper < n ? i + upper : n - 1;
    REAL sum = 0;
    for (long long j = first; j <= last; j++) sum += band[(upper + i - j) * n + j] * x[j];
    y[i] = sum;
}

extern "C" __global__ void band_by_warps(const REAL* band, long long lower, long long upper,
                                         const REAL* x, REAL* y, long long n)
{
    const long long i = thread() / 32;
    if (i >= n) return;
    const long long first = i < lower ? 0 : i - lower, last = i + upper < n ? i + upper : n - 1;
    REAL sum = 0;
    for (long long j = first + threadIdx.x % 32; j <= last; j += 32)
        sum += band[(upper + i - j) * n + j] * x[j];
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) y[i] = sum;
}

// Sparse: entries of row i from starts[i] to starts[i + 1], with the columns where they are.
extern "C" __global__ void sparse_by_threads(const REAL* entries, const int* columns,
                                             const int* starts, const REAL* x, REAL* y, long long m)
{
    const long long i = thread();
    if (i >= m) return;
    REAL sum = 0;
    for (int e = starts[i]; e < starts[i + 1]; e++) sum += entries[e] * x[columns[e]];
    y[i] = sum;
}

extern "C" __global__ void sparse_by_warps(const REAL* entries, const int* columns,
                                           const int* starts, const REAL* x, REAL* y, long long m)
{
    const long long i = thread() / 32;
    if (i >= m) return;
    REAL sum = 0;
    for (int e = starts[i] + threadIdx.x % 32; e < starts[i + 1]; e += 32)
        sum += entries[e] * x[columns[e]];
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) y[i] = sum;
}
