// Rows of a matrix, or of columns beside it, in registers, one for each thread of a block.
//
// Rows are eliminated by groups of GROUP: a group's rows are solved for in shared memory, a few
// columns in each warp, and then subtracted from those that come after it.  Compiled with -DGROUP.

#pragma once

#include "scalar.cuh"
#include "warp.cuh"

constexpr int AT_ONCE = 4;  // columns that a warp solves for, and entries that a thread loads

template <int COLUMNS>
struct Group {
    // Rows lie apart so that neighbouring threads write to different banks.
    static constexpr int PAD = COLUMNS * sizeof(Scalar) < 16 ? 0 : 16 / sizeof(Scalar);
    __align__(16) Scalar rows[GROUP][COLUMNS + PAD];
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
    for (int first = 0; first < count; first += AT_ONCE) {
        Scalar l[AT_ONCE];
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            if (first + p < count) l[p] = line[first + p];
        }
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++) {
            if (first + p >= count) break;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                x[c] = subtract_product(l[p], s.rows[first + p][c], x[c]);
            }
        }
    }
}

// Overwrite the group's `count` rows by solutions with its triangle, each lane having a row.
template <int COLUMNS>
__device__ inline void solve_group(Group<COLUMNS>& s, int count, bool lower)
{
    constexpr int STEP = COLUMNS < AT_ONCE ? COLUMNS : AT_ONCE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const bool has_row = lane < count;
    for (int first = STEP * warp; first < COLUMNS; first += STEP * warps) {
        Scalar x[STEP];
#pragma unroll
        for (int c = 0; c < STEP; c++) x[c] = has_row ? s.rows[lane][first + c] : make_scalar(0);
        for (int n = 0; n < count; n++) {
            const int p = lower ? n : count - 1 - n;
            const bool later = lower ? lane > p : lane < p;
            const Scalar t = has_row ? s.triangle[p][lane] : make_scalar(0);
#pragma unroll
            for (int c = 0; c < STEP; c++) {
                if (lane == p) x[c] = multiply(x[c], t);
                const Scalar solved = shuffle(x[c], p);
                if (later) x[c] = subtract_product(t, solved, x[c]);
            }
        }
#pragma unroll
        for (int c = 0; c < STEP; c++) {
            if (has_row) s.rows[lane][first + c] = x[c];
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
        for (int p = 0; p < count; p++) s.triangle[p][at] = line[first + p];
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

// Solve with a triangle of order n for the rows of a block, thread i having row i.
template <int COLUMNS>
__device__ inline void solve_triangle(Scalar (&x)[COLUMNS], int n, Line line, Form form,
                                      Group<COLUMNS>& s)
{
    const int row = threadIdx.x, place = row < n ? row : -1, groups = (n + GROUP - 1) / GROUP;
    for (int g = 0; g < groups; g++) {
        const int first = GROUP * (form.lower ? g : groups - 1 - g);
        eliminate(x, place, line, first, min(GROUP, n - first), form, s);
    }
}

// Packed factors, column-major, and what is solved with: of LU, A without its interchanges.
enum Kind { PLAIN, TRANSPOSED, ADJOINT, CHOLESKY };

template <int COLUMNS>
__device__ inline void solve_with(const Scalar* factors, int n, Index kind, Scalar (&x)[COLUMNS],
                                  Group<COLUMNS>& s)
{
    const Scalar* row = factors + threadIdx.x;
    const Scalar* column = factors + Index(threadIdx.x) * n;
    const bool turned = kind == TRANSPOSED || kind == ADJOINT;
    const Line down = {row, n, false}, across = {column, 1, kind == ADJOINT || kind == CHOLESKY};
    solve_triangle(x, n, turned ? across : down, {true, kind == PLAIN}, s);
    solve_triangle(x, n, kind == PLAIN ? down : across, {false, turned}, s);
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
