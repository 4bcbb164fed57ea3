// Factorizations of small square matrices, a block for each matrix of a stack, a thread for each
// row.  Compiled with -DMOST (the largest order) and -DGROUP.
//
// Panels of GROUP columns are loaded from left to right (from any memory order, `step` elements
// from matrix to matrix, `down` from row to row, `across` from column to column), and what the
// columns before them make of them is subtracted before they are factored.  Factors are
// column-major.  Where they are not null, `info` is LAPACK's, and -1 where an entry is not finite;
// `norm` is A's 1-norm, with |re| + |im| for the modulus as in LAPACK's xGERFS, or infinity where
// it is not factored; `ipiv` has interchanges from 0 on.

#include "rows.cuh"

struct Panel {
    Candidates candidates;
    __align__(16) Scalar pivot[GROUP];  // the pivot's row, from its own column on
    Scalar inverse;
    int row;
};

struct Norm {
    REAL sums[MOST];  // of sizes in each column
    double of_warp[32];
};

// Over the rows of a warp, the sum of sizes in column lane % GROUP of those before `end`: at each
// step a lane sends half of its columns to another one, and adds what it gets to the other half.
__device__ inline REAL column_sum(const Scalar (&a)[GROUP], int end)
{
    constexpr int HALF = GROUP / 2;
    const int lane = threadIdx.x % 32;
    REAL sums[HALF];
#pragma unroll
    for (int c = 0; c < HALF; c++) {
        const REAL first = c < end ? pivot_size(a[c]) : REAL(0);
        const REAL second = c + HALF < end ? pivot_size(a[c + HALF]) : REAL(0);
        const REAL other = __shfl_xor_sync(~0u, lane & HALF ? first : second, HALF);
        sums[c] = (lane & HALF ? second : first) + other;
    }
#pragma unroll
    for (int level = 1; HALF >> level; level++) {
        const int step = HALF >> level;
#pragma unroll
        for (int c = 0; c < HALF / 2; c++) {
            if (c >= step) break;
            const REAL first = sums[c], second = sums[c + step];
            const REAL other = __shfl_xor_sync(~0u, lane & step ? first : second, step);
            sums[c] = (lane & step ? second : first) + other;
        }
    }
    return GROUP == 32 ? sums[0] : sums[0] + __shfl_xor_sync(~0u, sums[0], GROUP);
}

// Add the sizes of a panel's columns, those before `end`, to their sums.
__device__ inline void add_columns(const Scalar (&a)[GROUP], int first, int end, Norm& s)
{
    const int lane = threadIdx.x % 32;
    const REAL sum = column_sum(a, end);
    if (lane < GROUP) atomicAdd(s.sums + first + lane, sum);
}

// Store what was found of a matrix; each thread has a column's sum of sizes.
__device__ inline void conclude(int failed, bool finite, double sum, int* info, double* norm,
                                Norm& s)
{
    constexpr unsigned long long INFINITE = 0x7ff0000000000000;
    const bool any = __syncthreads_or(!finite);
    const double found = block_largest(sum, s.of_warp);
    if (threadIdx.x > 0) return;
    const int number = failed ? failed : any ? -1 : 0;
    if (info) info[blockIdx.x] = number;
    if (norm) norm[blockIdx.x] = number ? real_of(INFINITE) : found;
}

// Columns first .. first + GROUP of a row.
__device__ inline void load(Scalar (&a)[GROUP], const Scalar* row, Index across, int width,
                            bool inside, bool& finite)
{
#pragma unroll
    for (int c = 0; c < GROUP; c++) {
        a[c] = inside && c < width ? row[c * across] : make_scalar(0);
        finite &= is_finite(a[c]);
    }
}

// Subtract l times the columns of `row` from those of `a`, and move them to the left by one.
__device__ inline void update_and_shift(Scalar (&a)[GROUP], Scalar l, const Scalar* row, int left)
{
    constexpr int CHUNK = 8;
#pragma unroll
    for (int first = 0; first < GROUP; first += CHUNK) {
        if (first < left) {
#pragma unroll
            for (int c = first ? first : 1; c < first + CHUNK; c++) {
                a[c - 1] = subtract_product(l, row[c], a[c]);
            }
        }
    }
}

// Factor a panel; L and the rows of U go to `lu`, of order n.  Returns the first zero pivot's
// number, from 1 on, or 0.  No row moves: `place` is where this thread's one stands.
__device__ inline int factor_panel(Scalar (&a)[GROUP], int first, int width, int& place, Scalar* lu,
                                   int n, int* ipiv, Panel& s)
{
    const int row = threadIdx.x, lane = row % 32;
    int zero = 0;
    for (int c = 0; c < width; c++) {
        const int j = first + c, left = width - c;
        const int p = lowest_of_largest(place >= j ? pivot_key(a[0]) : 0, place, s.candidates);
        if (place == p) {
#pragma unroll
            for (int q = 0; q < GROUP; q++) s.pivot[q] = a[q];
            s.inverse = is_zero(a[0]) ? a[0] : divide(make_scalar(1), a[0]);
            s.row = row;
            if (ipiv) ipiv[j] = p;
            place = j;
        } else if (place == j) {
            place = p;
        }
        __syncthreads();
        const Scalar pivot = s.pivot[0], inverse = s.inverse;
        if (is_zero(pivot) && !zero) zero = j + 1;
        Scalar l = make_scalar(0);
        if (place > j) {  // a tiny pivot has no reciprocal
            l = is_finite(inverse) ? multiply(a[0], inverse) : divide(a[0], pivot);
            lu[row + Index(j) * n] = l;
        }
        if (row < 32 && lane < left) lu[s.row + Index(j + lane) * n] = s.pivot[lane];
        update_and_shift(a, l, s.pivot, left);
        if (blockDim.x == 32) __syncthreads();  // else the next search for a pivot has a barrier
    }
    __syncthreads();
    return zero;
}

// P A = L U; row i of P A is row perm[i] of A.
extern "C" __global__ void __launch_bounds__(MOST, BLOCKS<GROUP>)
    lu(const Scalar* __restrict__ A, Index step, Index down, Index across, Index order, Scalar* LU,
       int* ipiv, int* perm, int* info, double* norm)
{
    __shared__ Group<GROUP> group;
    __shared__ Panel panel;
    __shared__ Norm sums;
    const int n = int(order), row = threadIdx.x;
    const bool inside = row < n;
    A += blockIdx.x * step + row * down;
    LU += blockIdx.x * order * order;
    if (ipiv) ipiv += blockIdx.x * order;
    for (int i = row; i < MOST; i += blockDim.x) sums.sums[i] = 0;
    __syncthreads();
    const Line line = {LU + row, order, false};
    int place = inside ? row : -1, zero = 0;
    bool finite = true;
    Scalar a[GROUP];
    for (int first = 0; first < n; first += GROUP) {
        const int width = min(GROUP, n - first);
        load(a, A + first * across, across, width, inside, finite);
        add_columns(a, first, GROUP, sums);
        for (int g = 0; g < first; g += GROUP) {
            eliminate(a, place, line, g, GROUP, {true, true}, group);
        }
        if (0 <= place && place < first) {
#pragma unroll
            for (int c = 0; c < GROUP; c++) {
                if (c < width) LU[row + (first + c) * order] = a[c];
            }
        }
        const int found = factor_panel(a, first, width, place, LU, n, ipiv, panel);
        if (!zero) zero = found;
    }
    for (int first = 0; first < n; first += GROUP) {
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            if (inside && first + c < n) a[c] = line[first + c];
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            if (inside && first + c < n) LU[place + (first + c) * order] = a[c];
        }
    }
    if (inside) perm[blockIdx.x * order + place] = row;
    conclude(zero, finite, sums.sums[row], info, norm, sums);
}

// A = L L^H from the lower triangle of A; zeros above the diagonal.
extern "C" __global__ void __launch_bounds__(MOST, BLOCKS<GROUP>)
    cholesky(const Scalar* __restrict__ A, Index step, Index down, Index across, Index order,
             Scalar* L, int* info, double* norm)
{
    __shared__ Group<GROUP> group;
    __shared__ __align__(16) Scalar column[2][GROUP];  // of even and odd columns
    __shared__ Norm sums;
    const int n = int(order), row = threadIdx.x;
    const bool inside = row < n;
    A += blockIdx.x * step + row * down;
    L += blockIdx.x * order * order + row;
    for (int i = row; i < MOST; i += blockDim.x) sums.sums[i] = 0;
    __syncthreads();
    const Line line = {L, order, false};
    bool finite = true;
    int failed = 0;
    double left = 0;  // sizes to the left of the diagonal, which are above it, too
    Scalar a[GROUP];
    for (int first = 0; first < n && !failed; first += GROUP) {
        const int width = min(GROUP, n - first), at = row - first;
        load(a, A + first * across, across, width, inside, finite);
        add_columns(a, first, at + 1, sums);
#pragma unroll
        for (int c = 0; c < GROUP; c++) left += c < at ? pivot_size(a[c]) : 0;
        for (int g = 0; g < first; g += GROUP) {  // the panel's own rows of L, as columns of L^H
            if (0 <= at && at < width) {
                Scalar l[LOADS<GROUP>];
                for (int p = 0; p < GROUP; p += LOADS<GROUP>) {
                    line.from(g).load(l, p, GROUP);
#pragma unroll
                    for (int q = 0; q < LOADS<GROUP>; q++) group.rows[p + q][at] = conj(l[q]);
                }
            }
            __syncthreads();
            if (inside && at >= 0) subtract_rows(a, group, line.from(g), GROUP);
            __syncthreads();
        }
        for (int c = 0; c < width; c++) {
            Scalar* below = column[c % 2];
            if (c <= at && at < width) below[at - c] = conj(a[0]);
            __syncthreads();
            const REAL d = real(below[0]);
            if (!(d > 0)) {
                failed = first + c + 1;
                break;
            }
            const REAL root = sqrt(d), inverse = 1 / root;
            const Scalar l = at < c    ? make_scalar(0)
                             : at == c ? make_scalar(root)
                                       : scale(a[0], inverse);
            if (inside) L[(first + c) * order] = l;
            update_and_shift(a, scale(l, inverse), below, width - c);
        }
        __syncthreads();
    }
    conclude(failed, finite, sums.sums[row] + left, info, norm, sums);
}
