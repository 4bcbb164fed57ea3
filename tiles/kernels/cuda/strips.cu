// LU with partial pivoting of a matrix that the registers of all multiprocessors hold.
//
// Compiled with -DWIDTH, the columns of a strip, those of a row taking 128 bytes, and with -DROWS,
// the rows of a thread.  A block has a strip, and its threads have the rows of it in registers:
// rows do not move, but have positions.  A strip is updated by the panels to its left, one after
// the other as their blocks publish them, is then factored, and published itself.  All blocks must
// be resident, as they wait for each other.

#include "warp.cuh"

constexpr int PER_CHUNK = 16 / sizeof(Scalar), CHUNKS = WIDTH / PER_CHUNK, MOST_WARPS = 8;
constexpr int UNROLLED = ROWS == 1 ? CHUNKS : 1;  // few rows leave registers for all chunks
// Looks for a panel, of half a microsecond each.
constexpr unsigned PATIENCE = 1u << 26;
static_assert(WIDTH <= 32 && WIDTH * sizeof(Scalar) == 128, "launch shape");

struct __align__(16) Chunk {
    Scalar of[PER_CHUNK];
};

struct Candidate {
    Chunk row[CHUNKS];
    Scalar inverse;  // of the pivot
    Bits key;
    int at;
};

struct Shared {
    Candidate of_warp[2][MOST_WARPS];
    Chunk upper[WIDTH][CHUNKS];      // of a panel's pivot rows, in the block's columns
    Scalar lower[WIDTH][WIDTH + 1];  // the panel's unit lower triangle
};

// The rows of a thread, in the block's columns, and their positions; -1 of rows that are not there.
struct Rows {
    Scalar a[ROWS][WIDTH];
    int at[ROWS];
};

// What the blocks publish: for each panel, the rows from its first pivot on, its unit lower
// triangle once more, the positions of all rows after its interchanges, and that it is ready.
struct Panels {
    Chunk* chunks;
    Scalar* triangles;
    int *positions, *ready, m;

    // The first chunk of a row; the others are m chunks apart each.
    __device__ Chunk* row(int panel, int row) const
    {
        return chunks + Index(panel) * CHUNKS * m + row;
    }

    // Its writes are there for all threads of the block.
    __device__ void wait_for(int panel) const
    {
        if (threadIdx.x == 0) {
            int found;
            unsigned looks = 0;
            do {
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                             : "=r"(found)
                             : "l"(ready + panel)
                             : "memory");
                // Its block is gone, which a cooperative launch excludes: no result, but an end.
                if (++looks == PATIENCE) __trap();
            } while (!found);
        }
        __syncthreads();
    }

    __device__ void publish(int panel) const
    {
        __syncthreads();
        if (threadIdx.x) return;
        asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(ready + panel), "r"(1) : "memory");
    }

    __device__ void take_positions(int panel, int (&at)[ROWS]) const
    {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = threadIdx.x + r * blockDim.x;
            if (row < m) at[r] = positions[Index(panel) * m + row];
        }
    }
};

__device__ inline Chunk chunk_of(const Scalar (&a)[WIDTH], int q)
{
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < PER_CHUNK; i++) chunk.of[i] = a[PER_CHUNK * q + i];
    return chunk;
}

// Subtract l times columns FIRST and up of a row from the rows that are `active`.
template <int FIRST>
__device__ inline void subtract_row(Rows& rows, const Scalar (&l)[ROWS], const bool (&active)[ROWS],
                                    const Chunk* row)
{
#pragma unroll
    for (int q = FIRST / PER_CHUNK; q < CHUNKS; q++) {
        const Chunk chunk = row[q];
#pragma unroll
        for (int i = 0; i < PER_CHUNK; i++) {
            const int c = PER_CHUNK * q + i;
            if (c < FIRST) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (active[r]) rows.a[r][c] = subtract_product(l[r], chunk.of[i], rows.a[r][c]);
            }
        }
    }
}

// Solve with the lower triangle in shared memory for the rows above: a lane has a row of EACH
// columns.
__device__ inline void solve_upper_rows(Shared& s)
{
    constexpr int AT_ONCE = 32 / WIDTH, EACH = WIDTH == 32 ? 4 : 1;
    const int lane = threadIdx.x % 32, row = lane % WIDTH, side = lane - row;
    const int step = blockDim.x / 32 * AT_ONCE * EACH;
    for (int first = threadIdx.x / 32 * AT_ONCE * EACH; first < WIDTH; first += step) {
        Scalar x[EACH];
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int c = first + side / WIDTH + n;
            x[n] = s.upper[row][c / PER_CHUNK].of[c % PER_CHUNK];
        }
#pragma unroll
        for (int i = 0; i < WIDTH - 1; i++) {
            const Scalar factor = s.lower[row][i];
#pragma unroll
            for (int n = 0; n < EACH; n++) {
                const Scalar known = shuffle(x[n], side + i);
                if (row > i) x[n] = subtract_product(factor, known, x[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < EACH; n++) {
            const int c = first + side / WIDTH + n;
            s.upper[row][c / PER_CHUNK].of[c % PER_CHUNK] = x[n];
        }
    }
}

// Update a strip by the panel of columns k and up, of which `count` have pivots.
__device__ inline void update(Shared& s, const Panels& panels, Rows& rows, int panel, int k,
                              int count)
{
    const Index apart = panels.m;
    const Chunk* mine = panels.row(panel, threadIdx.x);
    Chunk lower[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (rows.at[r] >= 0) lower[r] = mine[r * blockDim.x];  // while positions arrive
    }
    panels.take_positions(panel, rows.at);
    for (int i = threadIdx.x; i < WIDTH * WIDTH; i += blockDim.x) {
        s.lower[i / WIDTH][i % WIDTH] = panels.triangles[panel * WIDTH * WIDTH + i];
    }
    bool active[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int pivot = rows.at[r] - k;
        active[r] = pivot >= count;
        if (pivot < 0 || active[r]) continue;
#pragma unroll
        for (int q = 0; q < CHUNKS; q++) s.upper[pivot][q] = chunk_of(rows.a[r], q);
    }
    __syncthreads();
    solve_upper_rows(s);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int pivot = rows.at[r] - k;
        if (pivot < 0 || active[r]) continue;
#pragma unroll
        for (int c = 0; c < WIDTH; c++) {
            rows.a[r][c] = s.upper[pivot][c / PER_CHUNK].of[c % PER_CHUNK];
        }
    }
#pragma unroll UNROLLED
    for (int q = 0; q < CHUNKS; q++) {
        Chunk next[ROWS];
        mine += apart;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (active[r] && q + 1 < CHUNKS) next[r] = mine[r * blockDim.x];
        }
#pragma unroll
        for (int i = 0; i < PER_CHUNK; i++) {
            Scalar l[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) l[r] = lower[r].of[i];
            subtract_row<0>(rows, l, active, s.upper[PER_CHUNK * q + i]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) lower[r] = next[r];
    }
}

// 1 / x, or 0 where that would overflow or lose digits.
__device__ inline Scalar inverse_of(Scalar x)
{
#if COMPLEX
    const Scalar inverse = divide(make_scalar(1), x);
#else
    const Scalar inverse = sizeof(REAL) == 8 ? __drcp_rn(x) : __frcp_rn(x);
#endif
    const REAL size = pivot_size(inverse), least = sizeof(REAL) == 8 ? 1e-300 : 1e-35f;
    return size >= least && size <= 1 / least ? inverse : make_scalar(0);
}

// The pivot row of column J, from that column on, and the position where it stood, of rows at
// positions `from` and up; of rows with the same key the first is chosen.
template <int J>
__device__ inline const Candidate& find_pivot(Candidate (&of_warp)[MOST_WARPS], const Rows& rows,
                                              int from, int& position)
{
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    Bits key = 0;
    int at = NOBODY;
    Scalar pivot = make_scalar(1);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const Bits other = rows.at[r] >= from ? pivot_key(rows.a[r][J]) : 0;
        if (other < key || other == 0 || (other == key && rows.at[r] > at)) continue;
        key = other;
        at = rows.at[r];
        pivot = rows.a[r][J];
    }
    const Scalar inverse = inverse_of(pivot);  // while the largest key is found
    Bits best = warp_max(key);
    int first = warp_min(key == best ? at : NOBODY);
    Candidate& mine = of_warp[threadIdx.x / 32];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (rows.at[r] != first) continue;
#pragma unroll
        for (int q = J / PER_CHUNK; q < CHUNKS; q++) mine.row[q] = chunk_of(rows.a[r], q);
    }
    if (key && at == first) mine.inverse = inverse;
    if (lane == 0) mine.key = best, mine.at = first;
    __syncthreads();
    key = lane < warps ? of_warp[lane].key : 0;
    at = lane < warps ? of_warp[lane].at : NOBODY;
    best = warp_max(key);
    position = warp_min(key == best ? at : NOBODY);
    return of_warp[__ffs(__ballot_sync(~0u, at == position)) - 1];
}

// Factor column J of a strip that begins at column k, and those after it.
template <int J>
struct Columns {
    __device__ static void factor(Shared& s, Rows& rows, int k, int count, int* ipiv, int* info)
    {
        if (J >= count) return;
        int pivot;
        const Candidate& found = find_pivot<J>(s.of_warp[J & 1], rows, k + J, pivot);
        const Scalar divisor = found.row[J / PER_CHUNK].of[J % PER_CHUNK], inverse = found.inverse;
        if (threadIdx.x == 0) {
            ipiv[k + J] = pivot;
            if (is_zero(divisor) && *info == 0) *info = k + J + 1;
        }
        Scalar l[ROWS];
        bool active[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int& at = rows.at[r];
            at = at == k + J ? pivot : at == pivot ? k + J : at;
            active[r] = at > k + J;
            l[r] = rows.a[r][J];
            if (!is_zero(inverse)) l[r] = multiply(l[r], inverse);
            else if (!is_zero(divisor)) l[r] = divide(l[r], divisor);
            if (active[r]) rows.a[r][J] = l[r];
        }
        subtract_row<J + 1>(rows, l, active, found.row);
        Columns<J + 1>::factor(s, rows, k, count, ipiv, info);
    }
};

template <>
struct Columns<WIDTH> {
    __device__ static void factor(Shared&, Rows&, int, int, int*, int*) {}
};

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, 1)
    getrf_strips(Scalar* A, Index lda, Index m, Index n, Chunk* chunks, Scalar* triangles,
                 int* positions, int* ready, int* ipiv, int* info)
{
    __shared__ Shared s;
    const int steps = int(min(m, n)), strip = blockIdx.x, first = strip * WIDTH;
    const int last = (steps - 1) / WIDTH;
    const Panels panels = {chunks, triangles, positions, ready, int(m)};
    Rows rows;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = threadIdx.x + r * blockDim.x;
        rows.at[r] = row < m ? row : -1;
#pragma unroll
        for (int c = 0; c < WIDTH; c++) {
            rows.a[r][c] = row < m && first + c < n ? A[row + (first + c) * lda] : make_scalar(0);
        }
    }
    for (int panel = 0; panel < strip && panel <= last; panel++) {
        panels.wait_for(panel);
        const int k = panel * WIDTH;
        update(s, panels, rows, panel, k, min(WIDTH, steps - k));
    }
    if (strip <= last) {
        bool active[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) active[r] = rows.at[r] >= first;
        Columns<0>::factor(s, rows, first, min(WIDTH, steps - first), ipiv, info);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = threadIdx.x + r * blockDim.x;
            if (row < m) positions[strip * m + row] = rows.at[r];
            if (!active[r]) continue;
#pragma unroll
            for (int q = 0; q < CHUNKS; q++) panels.row(strip, row)[q * m] = chunk_of(rows.a[r], q);
            const int pivot = rows.at[r] - first;
            if (pivot >= WIDTH) continue;
            Scalar* triangle = panels.triangles + (strip * WIDTH + pivot) * WIDTH;
#pragma unroll
            for (int c = 0; c < WIDTH; c++) triangle[c] = rows.a[r][c];
        }
        panels.publish(strip);
    }
    if (strip != last) {
        panels.wait_for(last);
        panels.take_positions(last, rows.at);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (rows.at[r] < 0) continue;
#pragma unroll
        for (int c = 0; c < WIDTH; c++) {
            if (first + c < n) A[rows.at[r] + (first + c) * lda] = rows.a[r][c];
        }
    }
}
