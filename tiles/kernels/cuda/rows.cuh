// Rows of a matrix, or of columns beside it, in registers, one for each thread of a block.
//
// Rows are eliminated by groups of GROUP: a group's rows are solved for in shared memory, a few
// columns in each warp, and then subtracted from those that come after it.  Compiled with -DMOST
// (the largest order) and -DGROUP.

#pragma once

#include "scalar.cuh"
#include "warp.cuh"

// Of COLUMNS columns of a row, the bytes, and how many entries of a line are in flight beside them.
template <int COLUMNS>
constexpr int BYTES = COLUMNS * sizeof(Scalar);
template <int COLUMNS>
constexpr int LOADS = BYTES<COLUMNS> <= 128 ? 8 : 4;

// Blocks of the most threads for which a multiprocessor has registers; a block of one warp has all
// that it wants.
template <int COLUMNS>
constexpr int THREADS = BYTES<COLUMNS> <= 32 || sizeof(Scalar) == 4 ? 1024
                        : BYTES<COLUMNS> <= 256                     ? 512
                                                                    : 384;
template <int COLUMNS>
constexpr int BLOCKS = MOST > 32 && THREADS<COLUMNS> > MOST ? THREADS<COLUMNS> / MOST : 1;

template <int COLUMNS>
struct Group {
    // Rows begin where vectors of 16 bytes do, with one of these between them: 4 or 16 columns of
    // neighbouring threads are in different banks.
    static constexpr int VECTOR = 16 / sizeof(Scalar);
    static constexpr int STEP =
        COLUMNS < VECTOR ? COLUMNS : (COLUMNS + VECTOR - 1) / VECTOR * VECTOR + VECTOR;
    __align__(16) Scalar rows[GROUP][STEP];
    Scalar triangle[GROUP][GROUP];  // [p][i]: row i, column p; reciprocals on the diagonal
};

// A row of a matrix in global memory.
struct Line {
    const Scalar* first;
    Index across;
    bool conjugate;

    __device__ Line from(int p) const { return {first + p * across, across, conjugate}; }
    __device__ Scalar operator[](int p) const
    {
        const Scalar x = first[p * across];
        return conjugate ? conj(x) : x;
    }

    // Entries p, p + 1, ... below `count`, all in flight at once.
    template <int N>
    __device__ void load(Scalar (&x)[N], int p, int count) const
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (p + n < count) x[n] = (*this)[p + n];
        }
    }
};

// Which triangle is solved with, and whether it has ones on its diagonal.
struct Form {
    bool lower, unit;
};

// x <- x - sum of line[p] rows[p], p < count
template <int COLUMNS>
__device__ inline void subtract_rows(Scalar (&x)[COLUMNS], const Group<COLUMNS>& s, Line line,
                                     int count)
{
    Scalar l[LOADS<COLUMNS>];
    for (int first = 0; first < count; first += LOADS<COLUMNS>) {
        line.load(l, first, count);
#pragma unroll
        for (int p = 0; p < LOADS<COLUMNS>; p++) {
            if (first + p >= count) break;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                x[c] = subtract_product(l[p], s.rows[first + p][c], x[c]);
            }
        }
    }
}

// Overwrite the group's `count` rows by solutions with its triangle, each thread having a column.
template <int COLUMNS>
__device__ inline void solve_by_columns(Group<COLUMNS>& s, int count, bool lower)
{
    const int column = threadIdx.x;
    if (column >= COLUMNS) return;
    Scalar x[GROUP];
#pragma unroll
    for (int p = 0; p < GROUP; p++) x[p] = p < count ? s.rows[p][column] : make_scalar(0);
    if (lower) {
#pragma unroll
        for (int p = 0; p < GROUP; p++) {
            x[p] = multiply(x[p], s.triangle[p][p]);
#pragma unroll
            for (int i = p + 1; i < GROUP; i++) {
                x[i] = subtract_product(s.triangle[p][i], x[p], x[i]);
            }
        }
    } else {
#pragma unroll
        for (int p = GROUP - 1; p >= 0; p--) {
            if (p >= count) continue;
            x[p] = multiply(x[p], s.triangle[p][p]);
#pragma unroll
            for (int i = 0; i < p; i++) x[i] = subtract_product(s.triangle[p][i], x[p], x[i]);
        }
    }
#pragma unroll
    for (int p = 0; p < GROUP; p++) {
        if (p < count) s.rows[p][column] = x[p];
    }
}

// Overwrite columns first .. first + N of the group's `count` rows, those that there are, by
// solutions with its triangle, each lane having a row.
template <int N, int COLUMNS>
__device__ inline void solve_columns(Group<COLUMNS>& s, int first, int count, bool lower)
{
    const int lane = threadIdx.x % 32;
    const bool has_row = lane < count;
    Scalar x[N];
#pragma unroll
    for (int c = 0; c < N; c++) {
        x[c] = has_row && first + c < COLUMNS ? s.rows[lane][first + c] : make_scalar(0);
    }
#pragma unroll 4
    for (int n = 0; n < count; n++) {
        const int p = lower ? n : count - 1 - n;
        const bool later = lower ? lane > p : lane < p;
        const Scalar t = has_row ? s.triangle[p][lane] : make_scalar(0);
#pragma unroll
        for (int c = 0; c < N; c++) {
            if (lane == p) x[c] = multiply(x[c], t);
            const Scalar solved = shuffle(x[c], p);
            if (later) x[c] = subtract_product(t, solved, x[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < N; c++) {
        if (has_row && first + c < COLUMNS) s.rows[lane][first + c] = x[c];
    }
}

// Solve with the group's triangle: a single warp for all columns at once, several for a quarter of
// them each, or for half of a few.  As many columns as rows are solved for by threads that need not
// exchange them.
template <int COLUMNS>
__device__ inline void solve_group(Group<COLUMNS>& s, int count, bool lower)
{
    constexpr int FEW = COLUMNS > 5 ? (COLUMNS + 3) / 4 : (COLUMNS + 1) / 2;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (COLUMNS >= GROUP) {
        solve_by_columns(s, count, lower);
    } else if (warps == 1) {
        solve_columns<COLUMNS>(s, 0, count, lower);
    } else {
        for (int c = FEW * warp; c < COLUMNS; c += FEW * warps) {
            solve_columns<FEW>(s, c, count, lower);
        }
    }
}

// Eliminate the rows that stand at first .. first + count, `place` being where this thread's row
// stands (-1 for a thread without one), and `line` its row of the triangle.
template <int COLUMNS>
__device__ inline void eliminate(Scalar (&x)[COLUMNS], int place, Line line, int first, int count,
                                 Form form, Group<COLUMNS>& s)
{
    const int at = place - first;
    const bool own = 0 <= at && at < count;
    if (own) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) s.rows[at][c] = x[c];
        Scalar t[LOADS<COLUMNS>];
        for (int p = 0; p < count; p += LOADS<COLUMNS>) {
            line.from(first).load(t, p, count);
#pragma unroll
            for (int q = 0; q < LOADS<COLUMNS>; q++) {
                if (p + q < count) s.triangle[p + q][at] = t[q];
            }
        }
        const Scalar one = make_scalar(1);
        s.triangle[at][at] = form.unit ? one : divide(one, s.triangle[at][at]);
    }
    __syncthreads();
    solve_group(s, count, form.lower);
    __syncthreads();
    if (own) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) x[c] = s.rows[at][c];
    } else if (form.lower ? at >= count : 0 <= place && at < 0) {
        subtract_rows(x, s, line.from(first), count);
    }
    __syncthreads();
}

// Solve with a triangle of order n for the rows of a block, thread i having row i; `zero` rows are
// zero, and stay so.
template <int COLUMNS>
__device__ inline void solve_triangle(Scalar (&x)[COLUMNS], int n, Line line, Form form, int zero,
                                      Group<COLUMNS>& s)
{
    const int row = threadIdx.x, place = row < n ? row : -1, groups = (n + GROUP - 1) / GROUP;
    for (int g = zero / GROUP; g < groups; g++) {
        const int first = GROUP * (form.lower ? g : groups - 1 - g);
        eliminate(x, place, line, first, min(GROUP, n - first), form, s);
    }
}

// Packed factors, column-major, and what is solved with: of LU, A without its interchanges.
enum Kind { PLAIN, TRANSPOSED, ADJOINT, CHOLESKY };

// The first `zero` rows of the right-hand sides are zero.
template <int COLUMNS>
__device__ inline void solve_with(const Scalar* factors, int n, Index kind, Scalar (&x)[COLUMNS],
                                  Group<COLUMNS>& s, int zero = 0)
{
    const Line down = {factors + threadIdx.x, n, false};
    const Line across = {factors + Index(threadIdx.x) * n, 1, kind == ADJOINT || kind == CHOLESKY};
    const bool turned = kind == TRANSPOSED || kind == ADJOINT;
    for (int half = 0; half < 2; half++) {
        const bool lower = half == 0, plain = lower ? !turned : kind == PLAIN;
        const Form form = {lower, lower ? kind == PLAIN : turned};
        solve_triangle(x, n, plain ? down : across, form, lower ? zero : 0, s);
    }
}

// Of each warp, the largest key and the lowest number that has it.
struct Candidates {
    Bits key[32];
    int number[32];
};

// The lowest number that has the largest key of a block; each call but the first comes after a
// barrier that follows the last one.
__device__ inline int lowest_of_largest(Bits key, int number, Candidates& s)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    Bits best = warp_max(key);
    int lowest = warp_min(key == best && key ? number : NOBODY);
    if (warps == 1) return lowest;
    if (lane == 0) {
        s.key[warp] = best;
        s.number[warp] = lowest;
    }
    __syncthreads();
    key = lane < warps ? s.key[lane] : 0;
    best = warp_max(key);
    return warp_min(lane < warps && key == best ? s.number[lane] : NOBODY);
}
