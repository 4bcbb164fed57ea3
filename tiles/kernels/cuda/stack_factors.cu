// Factorizations of small square matrices, a block for each matrix of a stack, a thread for each
// row.  Compiled with -DMOST (the largest order) and -DGROUP.
//
// Panels of GROUP columns are loaded from left to right (from any memory order, `step` elements
// from matrix to matrix, `down` from row to row, `across` from column to column), and what the
// columns before them make of them is subtracted before they are factored.  Factors are
// column-major.  `info` is LAPACK's, and -1 where an entry is not finite.

#include "rows.cuh"

struct Panel {
    Candidates candidates;
    __align__(16) Scalar pivot[GROUP];  // the pivot's row, from its own column on
    Scalar inverse;
    int row;
};

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
            ipiv[j] = p;
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

// P A = L U: interchanges are 0-based, row i of P A is row perm[i] of A.
extern "C" __global__ void __launch_bounds__(MOST)
    lu(const Scalar* __restrict__ A, Index step, Index down, Index across, Index order, Scalar* LU,
       int* ipiv, int* perm, int* info)
{
    __shared__ Group<GROUP> group;
    __shared__ Panel panel;
    const int n = int(order), row = threadIdx.x;
    const bool inside = row < n;
    A += blockIdx.x * step + row * down;
    LU += blockIdx.x * order * order;
    ipiv += blockIdx.x * order;
    const Line line = {LU + row, order, false};
    int place = inside ? row : -1, zero = 0;
    bool finite = true;
    Scalar a[GROUP];
    for (int first = 0; first < n; first += GROUP) {
        const int width = min(GROUP, n - first);
        load(a, A + first * across, across, width, inside, finite);
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
    const bool any = __syncthreads_or(!finite);
    if (row == 0) info[blockIdx.x] = any ? -1 : zero;
}

// A = L L^H from the lower triangle of A; zeros above the diagonal.
extern "C" __global__ void __launch_bounds__(MOST)
    cholesky(const Scalar* __restrict__ A, Index step, Index down, Index across, Index order,
             Scalar* L, int* info)
{
    __shared__ Group<GROUP> group;
    __shared__ __align__(16) Scalar column[2][GROUP];  // of even and odd columns
    const int n = int(order), row = threadIdx.x;
    const bool inside = row < n;
    A += blockIdx.x * step + row * down;
    L += blockIdx.x * order * order + row;
    const Line line = {L, order, false};
    bool finite = true;
    int failed = 0;
    Scalar a[GROUP];
    for (int first = 0; first < n && !failed; first += GROUP) {
        const int width = min(GROUP, n - first), at = row - first;
        load(a, A + first * across, across, width, inside, finite);
        for (int g = 0; g < first; g += GROUP) {  // the panel's own rows of L, as columns of L^H
            if (0 <= at && at < width) {
                for (int p = 0; p < GROUP; p++) group.rows[p][at] = conj(line[g + p]);
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
    const bool any = __syncthreads_or(!finite);
    if (row == 0) info[blockIdx.x] = failed ? failed : any ? -1 : 0;
}
