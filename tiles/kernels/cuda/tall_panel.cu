// One leaf of a recursive panel that is too tall for panel.cu: m x w, w <= IB.
//
// Compiled with -DIB, -DTHREADS and -DRESIDENT.  A block keeps its rows in shared memory,
// with as many columns as fit.  With RESIDENT = 0 they stay in device memory: for any number
// of rows.  All else is as in panel.cu: the blocks, all of which are resident, exchange
// candidates for each pivot, and while these travel, column j - 1 is applied to the columns
// after j.  As it loads its columns, a leaf applies the `before` columns to the left of them,
// whose rows have been swapped, and whose rows of U are above: one pass over the memory
// instead of two.

#include "pivot_rows.cuh"

constexpr int BATCH = RESIDENT ? 2 : 32 / sizeof(Scalar);  // rows and
constexpr int GROUP = 4;  // columns of a thread whose loads are in flight together
static_assert(IB <= 32, "a lane is a column where rows are copied");

// Rows of a thread, THREADS apart.
struct Batch {
    int row, from, end;  // the first one; which rows count

    __device__ bool has(int n) const
    {
        return row + n * THREADS >= from && row + n * THREADS < end;
    }

    __device__ void load(Scalar (&x)[BATCH], const Scalar* column) const
    {
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            x[n] = has(n) ? column[row + n * THREADS] : make_scalar(0);
        }
    }

    __device__ void store(const Scalar (&x)[BATCH], Scalar* column) const
    {
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            if (has(n)) column[row + n * THREADS] = x[n];
        }
    }
};

__device__ inline void subtract(Scalar (&x)[BATCH], const Scalar (&l)[BATCH], Scalar u)
{
#pragma unroll
    for (int n = 0; n < BATCH; n++) x[n] = subtract_product(l[n], u, x[n]);
}

// Up to `columns` columns of a batch.
struct Group {
    Scalar x[GROUP][BATCH];
    int columns;

    __device__ void load(const Batch& batch, const Scalar* A, Index lda)
    {
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            if (c < columns) batch.load(x[c], A + c * lda);
        }
    }

    __device__ void store(const Batch& batch, Scalar* A, Index lda) const
    {
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            if (c < columns) batch.store(x[c], A + c * lda);
        }
    }

    // Subtract l times a row, whose elements are `step` apart.
    __device__ void subtract_row(const Scalar (&l)[BATCH], const Scalar* row, Index step)
    {
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            if (c < columns) subtract(x[c], l, row[c * step]);
        }
    }
};

// A thread's largest key, and the first row that has it.
struct Candidate {
    Bits key;
    unsigned row;

    __device__ void compare(const Batch& batch, const Scalar (&x)[BATCH], int first)
    {
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const Bits other = batch.has(n) ? pivot_key(x[n]) : 0;
            if (other > key) {
                key = other;
                row = first + batch.row + n * THREADS;
            }
        }
    }

    // Let the warps of a block know of each other's.
    __device__ void enter(Shared& s)
    {
        key = warp_winner(key, row);
        find_warp_winners(s, key, row);
    }
};

// A block's rows of the leaf, from row `first` on.
struct Rows {
    Scalar* X;
    Index ld;
    int first, count, w;

    // The thread's first batch of the rows from row `top` of the leaf on.
    __device__ Batch batch(int top) const { return {int(threadIdx.x), top - first, count}; }

    // Call `visit` with each batch of these rows.
    template <class Visit>
    __device__ void for_batches(int top, Visit visit) const
    {
        for (Batch batch = this->batch(top); batch.row < count; batch.row += BATCH * THREADS) {
            visit(batch);
        }
    }

    // Whether the row is one of this warp's.
    __device__ bool holds(int row) const
    {
        const int local = row - first;
        return local >= 0 && local < count && local % THREADS / 32 == threadIdx.x / 32;
    }

    __device__ void read_row(Scalar* out, int row) const
    {
        const int c = threadIdx.x % 32;
        __syncwarp();
        if (c < w) out[c] = X[row - first + c * ld];
    }

    __device__ void write_row(int row, const Scalar* from) const
    {
        const int c = threadIdx.x % 32;
        if (c < w) X[row - first + c * ld] = from[c];
        __syncwarp();
    }

    // X <- A - L U, L being the `before` columns to the left of A.
    __device__ void load(const Scalar* A, Index lda, const Scalar* U, int before) const
    {
        const Scalar* const L = A - before * lda;
        for (int c = 0; c < w; c += GROUP) {
            for_batches(first, [&](const Batch& batch) {
                Group group;
                group.columns = w - c;
                group.load(batch, A + c * lda, lda);
#pragma unroll 4
                for (int k = 0; k < before; k++) {
                    Scalar l[BATCH];
                    batch.load(l, L + k * lda);
                    group.subtract_row(l, U + k + c * lda, lda);
                }
                group.store(batch, X + c * ld, ld);
            });
        }
    }

    __device__ void store(Scalar* A, Index lda) const
    {
        for (int c = 0; c < w; c += GROUP) {
            for_batches(first, [&](const Batch& batch) {
                Group group;
                group.columns = w - c;
                group.load(batch, X + c * ld, ld);
                group.store(batch, A + c * lda, lda);
            });
        }
    }

    __device__ Candidate search_first_column() const
    {
        Candidate best = {0, unsigned(first)};
        for_batches(first, [&](const Batch& batch) {
            Scalar x[BATCH];
            batch.load(x, X);
            best.compare(batch, x, first);
        });
        return best;
    }

    // Subtract what column j contributes to the columns after j + 1.
    __device__ void update(const Scalar* pivot_row, int j) const
    {
        if (j + 2 >= w) return;
        for_batches(j + 1, [&](const Batch& batch) {
            Scalar l[BATCH];
            batch.load(l, X + j * ld);
            for (int c = j + 2; c < w; c += GROUP) {
                Group group;
                group.columns = w - c;
                group.load(batch, X + c * ld, ld);
                group.subtract_row(l, pivot_row + c, 1);
                group.store(batch, X + c * ld, ld);
            }
        });
    }

    // Make multipliers of column j, and update column j + 1, in which the next pivot is sought.
    __device__ Candidate eliminate(const Scalar* pivot_row, int j) const
    {
        Candidate best = {0, unsigned(first)};
        const Scalar pivot = pivot_row[j], beside = j + 1 < w ? pivot_row[j + 1] : make_scalar(0);
        for_batches(j + 1, [&](const Batch& batch) {
            Scalar l[BATCH], x[BATCH];
            batch.load(l, X + j * ld);
            if (j + 1 < w) batch.load(x, X + (j + 1) * ld);
            if (!is_zero(pivot)) {
#pragma unroll
                for (int n = 0; n < BATCH; n++) l[n] = divide(l[n], pivot);
                batch.store(l, X + j * ld);
            }
            if (j + 1 == w) return;
            subtract(x, l, beside);
            batch.store(x, X + (j + 1) * ld);
            best.compare(batch, x, first);
        });
        return best;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    getrf_tall_leaf(Scalar* A, Index lda, Index rows, Index columns, Index first_row,
                    int* __restrict__ ipiv, int* __restrict__ info, Unit* exchange,
                    Index first_number, unsigned* lost, Index before)
{
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ Shared s;
    const int m = int(rows), w = int(columns), row0 = int(first_row), blocks = gridDim.x;
    const int each = ((m - 1) / blocks + 32) & ~31;  // rows of a block
    const int first = blockIdx.x * each, count = min(each, m - first);
    Scalar* const mine = A + first;
    const Rows x = {RESIDENT ? reinterpret_cast<Scalar*>(memory) : mine, RESIDENT ? each : lda,
                    first, count, w};

    if (RESIDENT || before) x.load(mine, lda, A - before, int(before));
    const bool reports = blockIdx.x == 0 && threadIdx.x == 0;
    int first_zero = reports && row0 > 0 ? *info : 0;
    x.search_first_column().enter(s);
    for (int j = 0; j < w; j++) {
        const unsigned number = unsigned(first_number) + j;
        Unit* keys = exchange + (j & 1) * (blocks + (blocks + 1) * ROW_UNITS);
        int winner;
        const Bits key = block_winner(s, winner);
        if (threadIdx.x == 0) Words::put(keys + blockIdx.x, key, number);
        if (j > 0) x.update(s.pivot_row[(j - 1) & 1], j - 1);
        const bool has_winner = x.holds(winner), has_top = x.holds(j);
        if (has_winner) x.read_row(s.my_pivot_row, winner);
        if (has_top) x.read_row(s.my_top_row, j);
        exchange_rows(s, keys, winner, has_winner, j, has_top, number, lost);
        __syncthreads();
        const int pivot = s.pivot;
        const Scalar* pivot_row = s.pivot_row[j & 1];
        if (x.holds(pivot)) x.write_row(pivot, s.top_row);
        if (has_top) x.write_row(j, pivot_row);
        if (reports) {
            ipiv[j] = row0 + pivot;
            if (is_zero(pivot_row[j]) && first_zero == 0) first_zero = row0 + j + 1;
        }
        Candidate next = x.eliminate(pivot_row, j);
        if (j + 1 < w) next.enter(s);
    }
    if (reports) *info = first_zero;
    if (RESIDENT) x.store(mine, lda);
}
