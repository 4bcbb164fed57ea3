// One leaf of the recursive panel: m x w, w <= IB, with partial pivoting.
//
// Compiled with -DUNROLL, -DIB (a multiple of it) and -DTHREADS.  A thread keeps one
// row in registers, so that a column costs no memory traffic; all blocks must be
// resident, because each column needs an exchange between them: of each block's largest
// magnitude and the row that has it, and of row j.  Two buffers alternate: a block
// publishes column j + 2 only after every block has published column j + 1, that is,
// after all have read column j.  Of what column j does to the others, only column j + 1
// is needed to find the next pivot; the rest is done while the candidates travel.

#include "pivot_rows.cuh"

static_assert(IB % UNROLL == 0, "launch shape");

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
            const int first = row & ~31;  // of this warp
            exchange_rows(s, keys, winner, first == (winner & ~31), j, first == (j & ~31),
                          first_number + j, lost);
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
