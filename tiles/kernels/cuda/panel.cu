// One leaf of the recursive panel: m x w, w <= IB, with partial pivoting.
//
// Compiled with -DUNROLL, -DIB (a multiple of it) and -DTHREADS.  A thread keeps one
// row in registers, so that a column costs no memory traffic; all blocks must be
// resident, because each column needs an exchange between them: of each block's largest
// magnitude and the row that has it, and of row j.  Two buffers alternate: a block
// publishes column j + 2 only after every block has published column j + 1, that is,
// after all have read column j.  Of what column j does to the others, only column j + 1
// is needed to find the next pivot; the rest is done while the candidates travel.

#include "exchange.cuh"
#include "scalar.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int WORDS = IB * COMPONENTS;  // of a row
constexpr int ROW_UNITS = WORDS + 1;    // a row and its index
constexpr int ROW_LOADS = (ROW_UNITS + 31) / 32;
static_assert(IB % UNROLL == 0 && WARPS >= 2 && WARPS <= 32, "launch shape");

__device__ inline void keep_row(Scalar* row, const Scalar (&a)[IB])
{
#pragma unroll
    for (int c = 0; c < IB; c++) row[c] = a[c];
}

__device__ inline void take_row(Scalar (&a)[IB], const Scalar* row)
{
#pragma unroll
    for (int c = 0; c < IB; c++) a[c] = row[c];
}

// The warp of the thread that kept the row in shared memory sends it.
__device__ inline void publish_row(Unit* units, const Scalar* row, int index, unsigned number)
{
    __syncwarp();
    for (int word = threadIdx.x % 32; word < WORDS; word += 32) {
        const REAL value = reinterpret_cast<const REAL*>(row)[word];
        Words::put(units + word, bits_of(value), number);
    }
    if (threadIdx.x % 32 == 0) Words::put(units + WORDS, index, number);
}

// A warp waits for a row and lays it in shared memory; returns the row's index.
__device__ inline int receive_row(const Unit* units, unsigned number, unsigned* lost, Scalar* row)
{
    const int lane = threadIdx.x % 32;
    Bits words[ROW_LOADS];
    receive(units, ROW_UNITS, number, lost, words);
#pragma unroll
    for (int n = 0; n < ROW_LOADS; n++) {
        const int word = lane + 32 * n;
        if (word < WORDS) reinterpret_cast<REAL*>(row)[word] = real_of(words[n]);
    }
    return __shfl_sync(~0u, int(words[WORDS / 32]), WORDS % 32);
}

// The largest of the blocks' keys, as the first block that has it.
__device__ inline int winning_block(const Unit* keys, unsigned number, unsigned* lost)
{
    Bits mine = 0;
    unsigned block = gridDim.x - 1;
    for (int first = 0; first < gridDim.x; first += 128) {
        Bits key[4];
        receive(keys + first, gridDim.x - first, number, lost, key);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (key[n] > mine) {
                mine = key[n];
                block = first + threadIdx.x % 32 + 32 * n;
            }
        }
    }
    const Bits best = warp_max(mine);
    return warp_min(mine == best ? int(block) : NOBODY);
}

struct Shared {
    Bits warp_key[WARPS];
    int warp_row[WARPS];
    __align__(16) Scalar pivot_row[2][IB];  // of the panel, of even and odd columns
    __align__(16) Scalar top_row[IB];
    __align__(16) Scalar my_pivot_row[IB], my_top_row[IB];  // of this block
    int pivot;
};

// The warps' largest keys and the first rows that have them; ends with all threads.
__device__ inline void find_warp_winners(Shared& s, Bits key, int row)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Bits best = warp_max(key);
    const int first = __ffs(__ballot_sync(~0u, key == best)) - 1;
    if (lane == 0) {
        s.warp_key[warp] = best;
        s.warp_row[warp] = row + first;
    }
    __syncthreads();
}

// The block's largest key and the first row that has it.
__device__ inline Bits block_winner(const Shared& s, int& winner)
{
    const int lane = threadIdx.x % 32;
    const Bits key = lane < WARPS ? s.warp_key[lane] : 0;
    const Bits best = warp_max(key);
    winner = s.warp_row[__ffs(__ballot_sync(~0u, key == best)) - 1];
    return best;
}

// From each block's candidate to the panel's pivot row, and row j to all blocks.
// The warp that holds a row publishes it; warps 0 and 1 wait for what is published.
__device__ inline void exchange_rows(Shared& s, Unit* keys, int row, int winner, int j,
                                     unsigned number, unsigned* lost)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
    Unit *rows = keys + blocks, *top = rows + blocks * ROW_UNITS;
    if (row - lane == (winner & ~31)) {
        publish_row(rows + blockIdx.x * ROW_UNITS, s.my_pivot_row, winner, number);
    }
    if (row - lane == (j & ~31)) publish_row(top, s.my_top_row, j, number);
    if (warp == 0) {
        const int block = winning_block(keys, number, lost);
        const Unit* row_units = rows + block * ROW_UNITS;
        const int pivot = receive_row(row_units, number, lost, s.pivot_row[j & 1]);
        if (lane == 0) s.pivot = max(pivot, j);  // a lost row has no index
    } else if (warp == 1) {
        receive_row(top, number, lost, s.top_row);
    }
}

// Subtract l times the pivot row from columns `base + u` and up, column `base + c` being in
// a[c], and in pivot_row[c + SHIFT].
template <int SHIFT>
__device__ inline void subtract_row(Scalar (&a)[IB], Scalar l, const Scalar* pivot_row, int base,
                                    int u, int w)
{
#pragma unroll
    for (int g = 0; g < IB - SHIFT; g += UNROLL) {
        if (g > 0 && base + g >= w) continue;
#pragma unroll
        for (int c = g; c < g + UNROLL; c++) {
            if (c >= u) a[c] = subtract_product(l, pivot_row[c + SHIFT], a[c]);
        }
    }
}

__device__ inline void turn(Scalar (&a)[IB])
{
    Scalar first[UNROLL];
#pragma unroll
    for (int c = 0; c < UNROLL; c++) first[c] = a[c];
#pragma unroll
    for (int c = 0; c < IB - UNROLL; c++) a[c] = a[c + UNROLL];
#pragma unroll
    for (int c = 0; c < UNROLL; c++) a[IB - UNROLL + c] = first[c];
}

// A step on column j = base + u, for a thread that holds a row of the leaf in registers, a, and
// in l its multiplier of column j - 1.  Column `base + u` always stands in a[u]: the registers
// turn by UNROLL after each round, and stand as they did at first after the last one.
struct Step {
    int row, w;
    bool inside;
    Unit* exchange;
    unsigned first_number, *lost;

    // The pivot's row number; the pivot row and row j are then in shared memory.  While the
    // blocks' keys travel, the columns after j are updated by column j - 1.
    __device__ int find_pivot(Shared& s, Scalar (&a)[IB], Scalar l, int base, int u) const
    {
        const int j = base + u, blocks = gridDim.x;
        int winner;
        const Bits best = block_winner(s, winner);
        Unit* keys = exchange + (j & 1) * (blocks + (blocks + 1) * ROW_UNITS);
        if (row == winner && blocks > 1) Words::put(keys + blockIdx.x, best, first_number + j);
        if (inside && row >= j && j > 0) {
            const Scalar* before = s.pivot_row[(j - 1) & 1];
            if (u > 0) subtract_row<0>(a, l, before, base, u + 1, w);
            else subtract_row<UNROLL>(a, l, before, base, u + 1, w);
        }
        if (row == winner) keep_row(blocks == 1 ? s.pivot_row[j & 1] : s.my_pivot_row, a);
        if (row == j) keep_row(blocks == 1 ? s.top_row : s.my_top_row, a);
        if (blocks == 1) {
            if (row == winner) s.pivot = row;
        } else {
            exchange_rows(s, keys, row, winner, j, first_number + j, lost);
        }
        __syncthreads();
        return s.pivot;
    }

    // Swap row j and the pivot row, make multipliers of column j, and update column j + 1, in
    // which the next pivot is sought.
    __device__ void eliminate(Shared& s, Scalar (&a)[IB], Scalar& l, int pivot, int base,
                              int u) const
    {
        const int j = base + u;
        const Scalar* pivot_row = s.pivot_row[j & 1];
        if (row == pivot) take_row(a, s.top_row);
        if (row == j) take_row(a, pivot_row);
        const bool below = inside && row > j;
        if (below) {
            if (!is_zero(pivot_row[u])) a[u] = divide(a[u], pivot_row[u]);
            l = a[u];
        }
        if (u + 1 < IB && j + 1 < w) {
            if (below) a[u + 1] = subtract_product(l, pivot_row[u + 1], a[u + 1]);
            find_warp_winners(s, below ? pivot_key(a[u + 1]) : 0, row);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    getrf_leaf(Scalar* __restrict__ A, Index lda, Index rows, Index columns, Index first_row,
               int* __restrict__ ipiv, int* __restrict__ info, Unit* exchange, Index first_number,
               unsigned* lost)
{
    __shared__ Shared s;
    const int m = int(rows), w = int(columns), row0 = int(first_row);
    const int row = blockIdx.x * THREADS + threadIdx.x;
    const bool inside = row < m;
    const Step step = {row, w, inside, exchange, unsigned(first_number), lost};

    Scalar a[IB], l = make_scalar(0);
#pragma unroll
    for (int c = 0; c < IB; c++) a[c] = inside && c < w ? A[row + c * lda] : make_scalar(0);
    int first_zero = row == 0 && row0 > 0 ? *info : 0;
    find_warp_winners(s, inside ? pivot_key(a[0]) : 0, row);
    for (int base = 0; base < IB; base += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int j = base + u;
            if (j >= w) continue;
            const int pivot = step.find_pivot(s, a, l, base, u);
            if (row == 0) {
                ipiv[j] = row0 + pivot;
                if (is_zero(s.pivot_row[j & 1][u]) && first_zero == 0) first_zero = row0 + j + 1;
            }
            step.eliminate(s, a, l, pivot, base, u);
        }
        turn(a);
    }
    if (row == 0) *info = first_zero;
    if (!inside) return;
    asm volatile("" : "+l"(lda));  // else the addresses of the loads would stay in registers
#pragma unroll
    for (int c = 0; c < IB; c++) {
        if (c < w) A[row + c * lda] = a[c];
    }
}
