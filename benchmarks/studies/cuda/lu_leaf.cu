// LU of a panel of IB columns with partial pivoting, in one cooperative launch: a plain version of
// the library's leaf, to see what a column's time is made of, and two orders of its operations.
//
// A thread keeps one row in registers.  For each column every block finds its largest entry and
// publishes it with its row, waits for all other blocks, and takes the best of all as pivot row.
// Two buffers alternate: a block writes to one of them again only behind the next column's barrier,
// which others reach when they have read it.
//
// Compiled with -DIB= (at most 32), -DTHREADS=, and -DLAZY=
//   0  greedy: once a column has its pivot, all columns right of it are updated
//   1  lazy: a column is updated by all those before it, when its turn has come

#include "grid_barrier.cuh"

static_assert(IB <= 32 && THREADS >= 32, "a warp solves for a column");

enum Phase { UPDATE, SEARCH, EXCHANGE, PIVOT_ROW, PHASES };

// A magnitude, and the row that has it.
struct Best {
    double magnitude;
    int row;
};

// What a block publishes of a column.
struct Candidate {
    Best best;
    double entries[IB];
};

// The candidates of all blocks, and the row that the pivot row changes places with.
__device__ inline Candidate* top_of(Candidate* candidates) { return candidates + gridDim.x; }

// The nanoseconds that each block spends on a phase of a column, if they are asked for; all its
// threads must have come to the phase's end.
struct Trace {
    long long* spent;
    long long before;

    __device__ static long long now()
    {
        long long nanoseconds;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds)::"memory");
        return nanoseconds;
    }
    __device__ void end(int column, Phase phase)
    {
        if (spent == nullptr) return;
        __syncthreads();
        if (threadIdx.x != 0) return;
        const long long after = now();
        spent[(blockIdx.x * IB + column) * PHASES + phase] = after - before;
        before = after;
    }
};

// The best of a block's threads; the first row of those that are as large.
__device__ inline Best best_of_block(Best mine)
{
    __shared__ Best of_warps[THREADS / 32];
    for (int step = 16; step > 0; step /= 2) {
        const double magnitude = __shfl_xor_sync(~0u, mine.magnitude, step);
        const int row = __shfl_xor_sync(~0u, mine.row, step);
        if (magnitude > mine.magnitude || (magnitude == mine.magnitude && row < mine.row))
            mine = {magnitude, row};
    }
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
    __syncthreads();
    Best best = of_warps[0];
    for (int warp = 1; warp < THREADS / 32; warp++)
        if (of_warps[warp].magnitude > best.magnitude) best = of_warps[warp];
    return best;
}

// Column j of U above its diagonal, from the rows that were pivot rows; for one warp.
__device__ inline void solve_for_column(const double (&pivots)[IB][IB], int j, double (&u)[IB])
{
    const int i = threadIdx.x;
    double x = i < j ? pivots[i][j] : 0;
    for (int k = 0; k < j; k++) {
        const double above = __shfl_sync(~0u, x, k);
        if (i > k && i < j) x -= pivots[i][k] * above;
    }
    if (i < j) u[i] = x;
}

// What a thread does for column j, which is known when it is compiled.
struct Row {
    double a[IB];
    int row;
    bool inside;

    // Column j of this row, by all columns before it.
    __device__ void update_lazily(const double (&pivots)[IB][IB], int j)
    {
        __shared__ double u[IB];
        if (threadIdx.x < 32) solve_for_column(pivots, j, u);
        __syncthreads();
        if (row < j) a[j] = u[row];
        if (row < j) return;
#pragma unroll
        for (int k = 0; k < IB; k++)
            if (k < j) a[j] -= a[k] * u[k];
    }
    // The columns behind j of this row, by column j.
    __device__ void update_greedily(const double (&pivot_row)[IB], int j)
    {
        if (row <= j) return;
#pragma unroll
        for (int c = 0; c < IB; c++)
            if (c > j) a[c] -= a[j] * pivot_row[c];
    }
    __device__ void put(Candidate* to) const
    {
#pragma unroll
        for (int c = 0; c < IB; c++) to->entries[c] = a[c];
    }
    __device__ void take(const double (&from)[IB])
    {
#pragma unroll
        for (int c = 0; c < IB; c++) a[c] = from[c];
    }
    // Publish this block's best row of column j, and row j.
    __device__ void publish(Candidate* candidates, int j) const
    {
        const bool counts = inside && row >= j;
        const Best best = best_of_block({counts ? fabs(a[j]) : -1, row});
        if (row == best.row) {
            candidates[blockIdx.x].best = best;
            put(candidates + blockIdx.x);
        }
        if (row == j) put(top_of(candidates));
    }
    // Change places with the best row of all, and divide; returns which row it was.
    __device__ int pivot(Candidate* candidates, double (&pivot_row)[IB], int j)
    {
        __shared__ double top_row[IB];
        const int t = threadIdx.x;
        Best mine = {-2, 0};
        for (int block = t; block < gridDim.x; block += THREADS) {
            const Best other = {__ldcg(&candidates[block].best.magnitude),
                                __ldcg(&candidates[block].best.row)};
            if (other.magnitude > mine.magnitude) mine = other;
        }
        const int found = best_of_block(mine).row;
        if (t < IB) {
            pivot_row[t] = __ldcg(&candidates[found / THREADS].entries[t]);
            top_row[t] = __ldcg(&top_of(candidates)->entries[t]);
        }
        __syncthreads();
        if (row == found) take(top_row);
        if (row == j) take(pivot_row);
        if (row > j && pivot_row[j] != 0) a[j] /= pivot_row[j];
        return found;
    }
};

// `exchange` has 2 (blocks + 1) candidates; `counter` is zero before the first launch, and `spent`
// may be null.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    lu_leaf(double* A, long long lda, long long rows, int* ipiv, Candidate* exchange,
            unsigned* counter, long long* spent)
{
    __shared__ double pivots[IB][IB];
    Row mine;
    mine.row = blockIdx.x * THREADS + threadIdx.x;
    mine.inside = mine.row < rows;
#pragma unroll
    for (int c = 0; c < IB; c++) mine.a[c] = mine.inside ? A[mine.row + c * lda] : 0;
    Trace trace = {spent, Trace::now()};
#pragma unroll
    for (int j = 0; j < IB; j++) {
        Candidate* candidates = exchange + j % 2 * (gridDim.x + 1);
        if (LAZY && j > 0) mine.update_lazily(pivots, j);
        if (LAZY) trace.end(j, UPDATE);
        mine.publish(candidates, j);
        trace.end(j, SEARCH);
        wait_for_grid(counter);
        trace.end(j, EXCHANGE);
        const int pivot = mine.pivot(candidates, pivots[j], j);
        if (mine.row == 0) ipiv[j] = pivot;
        trace.end(j, PIVOT_ROW);
        if (!LAZY) mine.update_greedily(pivots[j], j);
        if (!LAZY) trace.end(j, UPDATE);
    }
    if (!mine.inside) return;
#pragma unroll
    for (int c = 0; c < IB; c++) A[mine.row + c * lda] = mine.a[c];
}
