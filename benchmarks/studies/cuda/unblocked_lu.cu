// LU without pivoting, a column at a time, in several ways that do the same.
//
// The matrix has n columns of `ld` rows, a multiple of 4.  A thread works on WIDTH rows of a column
// at once.  Loads pass the first cache, which does not see what other multiprocessors write.
//
// Compiled with -DREAL=float|double, -DWIDTH=1|2|4, and -DARITHMETIC=1, or 0 for the same loads and
// stores alone.

#include "grid_barrier.cuh"

struct alignas(sizeof(REAL) * WIDTH < 16 ? sizeof(REAL) * WIDTH : 16) Rows {
    REAL x[WIDTH];
};

__device__ inline REAL load(const REAL* from) { return __ldcg(from); }

#if WIDTH == 1

__device__ inline Rows load_rows(const REAL* from) { return {{load(from)}}; }

#else

template <bool LONG>
struct Choose {
    using Word = float4;
};

template <>
struct Choose<false> {
    using Word = float2;
};

// By words of 16 bytes, or of 8 where a piece is no longer.
__device__ inline Rows load_rows(const REAL* from)
{
    using Word = typename Choose<(sizeof(Rows) % 16 == 0)>::Word;
    Rows rows;
#pragma unroll
    for (int w = 0; w < int(sizeof(Rows) / sizeof(Word)); w++)
        reinterpret_cast<Word*>(&rows)[w] = __ldcg(reinterpret_cast<const Word*>(from) + w);
    return rows;
}

#endif

// Rows i > k of column j: an update of the trailing matrix.
__device__ inline void update_rows(REAL* a, long long ld, long long k, long long j, long long i,
                                   bool scaled)
{
    REAL* column = a + j * ld + i;
    Rows c = load_rows(column);
    const Rows l = load_rows(a + k * ld + i);
    const REAL u = load(a + k + j * ld), pivot = scaled ? REAL(1) : load(a + k + k * ld);
#pragma unroll
    for (int w = 0; w < WIDTH; w++) {
#if ARITHMETIC
        if (i + w > k) c.x[w] -= (scaled ? l.x[w] : l.x[w] / pivot) * u;
#else
        // Cannot be true, which the compiler does not know.
        if (l.x[w] == REAL(3e38) && u == pivot) c.x[w] = l.x[w];
#endif
    }
    *reinterpret_cast<Rows*>(column) = c;
}

// Rows i > k of column k: division by the pivot.
__device__ inline void scale_rows(REAL* a, long long ld, long long k, long long i)
{
    REAL* column = a + k * ld + i;
    Rows c = load_rows(column);
    const REAL pivot = load(a + k + k * ld);
#pragma unroll
    for (int w = 0; w < WIDTH; w++) {
#if ARITHMETIC
        if (i + w > k) c.x[w] /= pivot;
#else
        if (pivot == REAL(3e38)) c.x[w] = pivot;
#endif
    }
    *reinterpret_cast<Rows*>(column) = c;
}

// The first of a thread's rows, from row `first` on, and the distance to its next ones.
#define FOR_ROWS(i, first, n)                                                                      \
    for (long long i =                                                                             \
             (first) / WIDTH * WIDTH + WIDTH * (blockIdx.x * (long long)blockDim.x + threadIdx.x); \
         i < n; i += WIDTH * gridDim.x * (long long)blockDim.x)
#define FOR_COLUMNS(j, first, n) for (long long j = (first) + blockIdx.y; j < n; j += gridDim.y)

// Two passes: a launch divides the column, the next one updates what is right of it.
extern "C" __global__ void scale(REAL* a, long long ld, long long n, long long k)
{
    FOR_ROWS(i, k + 1, n) scale_rows(a, ld, k, i);
}

extern "C" __global__ void update(REAL* a, long long ld, long long n, long long k)
{
    FOR_COLUMNS(j, k + 1, n) FOR_ROWS(i, k + 1, n) update_rows(a, ld, k, j, i, true);
}

// Fused: one launch a step.  Updates divide by the pivot themselves, and column k - 1, which nobody
// reads any more, is divided beside them.
__device__ inline void fused_rows(REAL* a, long long ld, long long k, long long j, long long i)
{
    if (j == k - 1) scale_rows(a, ld, k - 1, i);
    else if (j > k) update_rows(a, ld, k, j, i, false);
}

extern "C" __global__ void fused(REAL* a, long long ld, long long n, long long k)
{
    FOR_COLUMNS(j, k == 0 ? 0 : k - 1, n) FOR_ROWS(i, k, n) fused_rows(a, ld, k, j, i);
}

// The same, launched over the whole matrix: a branch lets those go that have nothing to do.
extern "C" __global__ void fused_whole(REAL* a, long long ld, long long n, long long k)
{
    FOR_COLUMNS(j, 0, n) FOR_ROWS(i, 0, n) if (i + WIDTH > k) fused_rows(a, ld, k, j, i);
}

// All steps in one cooperative launch of a one-dimensional grid, with a barrier behind each.
extern "C" __global__ void persistent(REAL* a, long long ld, long long n, unsigned* counter)
{
    // 32 bits are divided much faster than 64.
    const unsigned across = (n + WIDTH * blockDim.x - 1) / (WIDTH * blockDim.x);
    for (long long k = 0; k < n; k++) {
        const long long top = k / WIDTH * WIDTH, left = k == 0 ? 0 : k - 1;
        const unsigned pieces = across * unsigned(n - left);
        for (unsigned piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
            const unsigned j = piece / across, part = piece % across;
            const long long i = top + WIDTH * (part * (long long)blockDim.x + threadIdx.x);
            if (i < n) fused_rows(a, ld, k, left + j, i);
        }
        wait_for_grid(counter);
    }
}
