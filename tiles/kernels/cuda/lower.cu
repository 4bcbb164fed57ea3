// Kernels on lower triangles.  Compiled with -DRHS and -DSLICES (columns, and rows in
// slices of 32, that a block of solve_lower holds) and -DSTRIP (columns that a thread of
// substitute_right holds).  An upper triangle, read backwards from its last element, is a
// lower one.

#include "scalar.cuh"
#include "warp.cuh"

// L^-1 times columns held as x, L lower triangular of order w <= 32 SLICES, with ones on
// its diagonal where UNIT; its rows are STEP apart.  A warp solves RHS columns on its own: lane l
// holds their rows l, l + 32, ..., and as soon as row k is known it is subtracted from all below.
template <bool UNIT, int STEP = 1>
__device__ inline void solve_lower(const Scalar* __restrict__ L, Index ldl,
                                   Scalar (&x)[SLICES][RHS], Index w)
{
    const int lane = threadIdx.x;
#pragma unroll
    for (int known = 0; known < SLICES; known++) {
        if (32 * known >= w) break;
        const Scalar* column = L + STEP * lane + Index(32 * known) * ldl;
        const Index row = lane + 32 * known;
        Scalar inverse = make_scalar(1);
        if (!UNIT && row < w) inverse = divide(inverse, L[STEP * row + row * ldl]);
#pragma unroll 8
        for (int k = 0; k < 32; k++, column += ldl) {
            Scalar factor[SLICES];
#pragma unroll
            for (int s = known; s < SLICES; s++) {
                const bool below = lane + 32 * s < w && (s > known || lane > k);
                factor[s] = below ? column[STEP * 32 * s] : make_scalar(0);
            }
#pragma unroll
            for (int q = 0; q < RHS; q++) {
                const Scalar mine = UNIT ? x[known][q] : multiply(x[known][q], inverse);
                const Scalar value = shuffle(mine, k);
                if (!UNIT && lane == k) x[known][q] = value;
#pragma unroll
                for (int s = known; s < SLICES; s++) {
                    const Scalar next = subtract_product(factor[s], value, x[s][q]);
                    x[s][q] = s > known || lane > k ? next : x[s][q];
                }
            }
        }
    }
}

template <int STEP = 1>
__device__ inline void keep_columns(const Scalar (&x)[SLICES][RHS], Scalar* B, Index ldb, Index w,
                                    Index first, Index columns)
{
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        const int row = threadIdx.x + 32 * s;
#pragma unroll
        for (int q = 0; q < RHS; q++) {
            if (row < w && first + q < columns) B[STEP * row + (first + q) * ldb] = x[s][q];
        }
    }
}

// B <- L^-1 B, L unit lower triangular of order w.
extern "C" __global__ void __launch_bounds__(32)
    solve_unit_lower(const Scalar* __restrict__ L, Index ldl, Scalar* __restrict__ B, Index ldb,
                     Index w, Index columns)
{
    const Index first = Index(blockIdx.x) * RHS;
    Scalar x[SLICES][RHS];
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        const int row = threadIdx.x + 32 * s;
#pragma unroll
        for (int q = 0; q < RHS; q++) {
            x[s][q] = row < w && first + q < columns ? B[row + (first + q) * ldb] : make_scalar(0);
        }
    }
    solve_lower<true>(L, ldl, x, w);
    keep_columns(x, B, ldb, w, first, columns);
}

// W, with diagonal blocks of order `block`, gets the inverses of the leaves of T, its diagonal
// blocks of order 32 SLICES, and zeros in the other triangle of each block.  T is of order w, and
// lower triangular, with ones on its diagonal if `unit`; or, if `upper`, upper triangular.
extern "C" __global__ void __launch_bounds__(32)
    invert_diagonal(const Scalar* __restrict__ T, Index ldt, Scalar* W, Index ldw, Index w,
                    Index block, Index unit, Index upper)
{
    const Index column = Index(blockIdx.x) * RHS, top = column / (32 * SLICES) * (32 * SLICES);
    const Index order = min(Index(32 * SLICES), w - top), first = column - top, last = order - 1;
    const Scalar* leaf = T + top * (ldt + 1);
    Scalar* inverse = W + top * (ldw + 1);
    Scalar x[SLICES][RHS];
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
#pragma unroll
        for (int q = 0; q < RHS; q++) {
            const Index one = upper ? last - first - q : first + q;
            x[s][q] = make_scalar(threadIdx.x + 32 * s == one);
        }
    }
    if (upper) {
        leaf += last * (ldt + 1);
        solve_lower<false, -1>(leaf, -ldt, x, order);
        keep_columns<-1>(x, inverse + last, ldw, order, first, order);
    } else {
        if (unit) {
            solve_lower<true>(leaf, ldt, x, order);
        } else {
            solve_lower<false>(leaf, ldt, x, order);
        }
        keep_columns(x, inverse, ldw, order, first, order);
    }
    const Index start = column / block * block, stop = min(start + block, w);
    const Index from = upper ? top + order : start, to = upper ? stop : top;
    for (int q = 0; q < RHS && column + q < w; q++) {
        for (Index i = from + threadIdx.x; i < to; i += 32) {
            W[i + (column + q) * ldw] = make_scalar(0);
        }
    }
}

// A <- diagonal I; a block takes a column.
extern "C" __global__ void laset(Scalar* A, Index lda, Index rows, Index diagonal)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i < rows; i += blockDim.x) {
        A[i + c * lda] = make_scalar(i == c ? REAL(diagonal) : REAL(0));
    }
}

// Thread 0 gets the 1-norm of a column's rows first .. w; infinity for NaN.
__device__ inline double column_norm(const Scalar* column, Index first, Index w)
{
    __shared__ double partial[32];
    double sum = 0;
    for (Index i = first + threadIdx.x; i < w; i += blockDim.x) sum += modulus(column[i]);
    sum = warp_sum(sum);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int n = 1; n < blockDim.x / 32; n++) sum += partial[n];
    return sum == sum ? sum : __longlong_as_double(0x7ffll << 52);
}

// W[0, 0] = NaN where ||W||_1 ||L||_1 passes the bound or is not finite; ||L||_1 counts
// as 1 where L is null.  `state` is two largest norms (as bits, which order as the
// numbers do) and the blocks that have ended; the last block leaves zeros in it.
extern "C" __global__ void check_inverse(Scalar* W, Index ldw, const Scalar* L, Index ldl, Index w,
                                         double bound, unsigned long long* state)
{
    const Index c = blockIdx.x;
    const double inverse = column_norm(W + c * ldw, 0, w);
    const double direct = L ? column_norm(L + c * ldl, c, w) : 1;
    if (threadIdx.x > 0) return;
    atomicMax(state, (unsigned long long)__double_as_longlong(inverse));
    atomicMax(state + 1, (unsigned long long)__double_as_longlong(direct));
    __threadfence();
    if (atomicAdd(state + 2, 1ull) + 1 < gridDim.x) return;
    double size = 1;
    for (int n = 0; n < 2; n++) size *= __longlong_as_double(atomicExch(state + n, 0ull));
    atomicExch(state + 2, 0ull);
    if (!(size <= bound) || isinf(size)) W[0] = make_scalar(REAL(nan("")));
}

// Where W[0, 0] is NaN: B <- L^-1 X by substitution; else nothing.
extern "C" __global__ void substitute(const Scalar* W, const Scalar* __restrict__ L, Index ldl,
                                      const Scalar* __restrict__ X, Index ldx, Scalar* B, Index ldb,
                                      Index w, Index columns, Index unit)
{
    if (!is_nan(*W)) return;
    for (Index c = blockIdx.x; c < columns; c += gridDim.x) {
        Scalar* b = B + c * ldb;
        for (Index i = threadIdx.x; i < w; i += blockDim.x) b[i] = X[i + c * ldx];
        __syncthreads();
        for (Index k = 0; k < w; k++) {
            const Scalar known = unit ? b[k] : divide(b[k], L[k + k * ldl]);
            for (Index i = k + 1 + threadIdx.x; i < w; i += blockDim.x) {
                b[i] = subtract_product(L[i + k * ldl], known, b[i]);
            }
            __syncthreads();
            if (threadIdx.x == 0) b[k] = known;
        }
    }
}

// l[k][c] = conj(L[c, k]), as far as L has `rows` and `columns`; else zero.
__device__ inline void share(Scalar (&l)[STRIP][STRIP], const Scalar* __restrict__ L, Index ldl,
                             Index rows, Index columns)
{
    __syncthreads();
    for (int e = threadIdx.x; e < STRIP * STRIP; e += blockDim.x) {
        const int c = e % STRIP, k = e / STRIP;
        l[k][c] = c < rows && k < columns ? conj(L[c + k * ldl]) : make_scalar(0);
    }
    __syncthreads();
}

// Where W[0, 0] is NaN: B <- X L^-H by substitution; else nothing.  A thread solves a
// row, STRIP columns at a time in registers.
extern "C" __global__ void substitute_right(const Scalar* W, const Scalar* __restrict__ L,
                                            Index ldl, const Scalar* __restrict__ X, Index ldx,
                                            Scalar* B, Index ldb, Index rows, Index w)
{
    if (!is_nan(*W)) return;
    __shared__ Scalar l[STRIP][STRIP];
    const Index row = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    const bool inside = row < rows;
    for (Index first = 0; first < w; first += STRIP) {
        const Index count = min(Index(STRIP), w - first);
        Scalar b[STRIP], known[STRIP];
#pragma unroll
        for (int c = 0; c < STRIP; c++) {
            b[c] = inside && c < count ? X[row + (first + c) * ldx] : make_scalar(0);
        }
        for (Index left = 0; left < first; left += STRIP) {
#pragma unroll
            for (int k = 0; k < STRIP; k++) {
                known[k] = inside ? B[row + (left + k) * ldb] : make_scalar(0);
            }
            share(l, L + first + left * ldl, ldl, count, STRIP);
#pragma unroll
            for (int k = 0; k < STRIP; k++) {
#pragma unroll
                for (int c = 0; c < STRIP; c++) b[c] = subtract_product(known[k], l[k][c], b[c]);
            }
        }
        share(l, L + first * (ldl + 1), ldl, count, count);
#pragma unroll
        for (int k = 0; k < STRIP; k++) {
            if (k >= count) break;
            b[k] = divide(b[k], l[k][k]);
            if (inside) B[row + (first + k) * ldb] = b[k];
#pragma unroll
            for (int c = k + 1; c < STRIP; c++) b[c] = subtract_product(b[k], l[k][c], b[c]);
        }
    }
}

// What is above the diagonals of the diagonal blocks of order `leaf` of C goes to X
// (leaf x columns), or back where `restore`.  A block takes a column.
extern "C" __global__ void keep_upper(Scalar* C, Index ldc, Scalar* X, Index leaf, Index restore)
{
    const Index column = blockIdx.x, first = column / leaf * leaf;
    Scalar *inside = C + first + column * ldc, *outside = X + column * leaf;
    for (Index i = threadIdx.x; i < column - first; i += blockDim.x) {
        if (restore) inside[i] = outside[i];
        else outside[i] = inside[i];
    }
}
