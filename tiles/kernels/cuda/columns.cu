// Kernels on columns of a matrix; after scalar.cu and pivots.cu.  Compiled with
// -DENTRIES (moves that a thread holds), -DRHS and -DSLICES (columns, and rows in
// slices of 32, that a block of solve_unit_lower holds).

// Each block loads the rows that move of one column, and then stores them.
__device__ inline void move_rows(Scalar* __restrict__ A, Index lda, Index columns,
                                 const int (&to)[ENTRIES], const int (&from)[ENTRIES])
{
    for (Index c = blockIdx.x; c < columns; c += gridDim.x) {
        Scalar* column = A + c * lda;
        Scalar value[ENTRIES];
#pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            if (to[e] >= 0) value[e] = column[from[e]];
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < ENTRIES; e++) {
            if (to[e] >= 0) column[to[e]] = value[e];
        }
    }
}

// The moves of `net`, at most ENTRIES a thread.
extern "C" __global__ void swap_net(Scalar* A, Index lda, Index columns,
                                    const int* __restrict__ net, Index ldn, Index entries)
{
    int to[ENTRIES], from[ENTRIES];
#pragma unroll
    for (int e = 0; e < ENTRIES; e++) {
        const Index i = threadIdx.x + e * blockDim.x;
        to[e] = i < entries ? net[i * ldn] : -1;
        from[e] = i < entries ? net[i * ldn + 1] : 0;
    }
    move_rows(A, lda, columns, to, from);
}

// The same straight from the pivots, less `offset`: for a panel's own swaps,
// where one launch is cheaper than two.  At most 2 pivots a thread.
extern "C" __global__ void swap_pivots(Scalar* A, Index lda, Index columns,
                                       const int* __restrict__ ipiv, Index w, Index offset)
{
    __shared__ int p[ENTRIES / 2 * 1024], self[ENTRIES / 2 * 1024];
    Link link[ENTRIES / 2];
    for (int i = threadIdx.x; i < w; i += blockDim.x) p[i] = ipiv[i] - int(offset);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < ENTRIES / 2; e++) {
        const int i = threadIdx.x + e * blockDim.x;
        if (i < w) {
            link[e] = {-1, -1, false};
            scan_pivots(link[e], p, 0, int(w), i, p[i]);
            self[i] = link[e].self;
        }
    }
    __syncthreads();
    int to[ENTRIES], from[ENTRIES];
#pragma unroll
    for (int e = 0; e < ENTRIES / 2; e++) {
        const int i = threadIdx.x + e * blockDim.x;
        Moves moves = {{-1, -1}, {0, 0}};
        if (i < w) moves = find_moves(self, link[e].same, link[e].repeats, int(w), i, p[i]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            to[2 * e + n] = moves.to[n];
            from[2 * e + n] = moves.from[n];
        }
    }
    move_rows(A, lda, columns, to, from);
}

// Swap after swap, a thread a column: slow, and without limit on the pivots.
extern "C" __global__ void swap_serial(Scalar* A, Index lda, Index columns,
                                       const int* __restrict__ ipiv, Index w, Index offset)
{
    const Index c = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    Scalar* column = A + c * lda;
    for (Index i = 0; i < w; i++) {
        const Index p = ipiv[i] - offset;
        const Scalar value = column[i];
        column[i] = column[p];
        column[p] = value;
    }
}

// B <- L^-1 B, L unit lower triangular of order w <= 32 SLICES.  A warp solves RHS
// columns on its own: lane l holds their rows l, l + 32, ..., and as soon as row k
// is known it is subtracted from all below.
extern "C" __global__ void __launch_bounds__(32)
    solve_unit_lower(const Scalar* __restrict__ L, Index ldl, Scalar* __restrict__ B, Index ldb,
                     Index w, Index columns)
{
    const int lane = threadIdx.x;
    const Index first = Index(blockIdx.x) * RHS;
    Scalar x[SLICES][RHS];
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        const int row = lane + 32 * s;
#pragma unroll
        for (int q = 0; q < RHS; q++) {
            x[s][q] = row < w && first + q < columns ? B[row + (first + q) * ldb] : make_scalar(0);
        }
    }
#pragma unroll
    for (int known = 0; known < SLICES; known++) {
        if (32 * known >= w) break;
        const Scalar* column = L + lane + Index(32 * known) * ldl;
#pragma unroll 8
        for (int k = 0; k < 32; k++, column += ldl) {
            Scalar factor[SLICES];
#pragma unroll
            for (int s = known; s < SLICES; s++) {
                const bool below = lane + 32 * s < w && (s > known || lane > k);
                factor[s] = below ? column[32 * s] : make_scalar(0);
            }
#pragma unroll
            for (int q = 0; q < RHS; q++) {
                const Scalar value = shuffle(x[known][q], k);
#pragma unroll
                for (int s = known; s < SLICES; s++) {
                    const Scalar next = subtract_product(factor[s], value, x[s][q]);
                    x[s][q] = s > known || lane > k ? next : x[s][q];
                }
            }
        }
    }
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        const int row = lane + 32 * s;
#pragma unroll
        for (int q = 0; q < RHS; q++) {
            if (row < w && first + q < columns) B[row + (first + q) * ldb] = x[s][q];
        }
    }
}

extern "C" __global__ void set_identity(Scalar* W, Index ldw, Index w)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i < w; i += blockDim.x) W[i + c * ldw] = make_scalar(i == c);
}

// W[0, 0] = NaN where a column's 1-norm passes the bound or is not finite.  A
// block that sees another's NaN already agrees with it.
extern "C" __global__ void check_inverse(Scalar* W, Index ldw, Index w, double bound)
{
    __shared__ double partial[32];
    const Scalar* column = W + blockIdx.x * ldw;
    double sum = 0;
    for (Index i = threadIdx.x; i < w; i += blockDim.x) sum += modulus(column[i]);
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int n = 1; n < blockDim.x / 32; n++) sum += partial[n];
    if (!(sum <= bound) || isinf(sum)) W[0] = make_scalar(REAL(nan("")));
}

// Where W[0, 0] is NaN: B <- L^-1 X by substitution; else nothing.
extern "C" __global__ void substitute(const Scalar* W, const Scalar* __restrict__ L, Index ldl,
                                      const Scalar* __restrict__ X, Index ldx, Scalar* B,
                                      Index ldb, Index w, Index columns)
{
    if (!is_nan(*W)) return;
    for (Index c = blockIdx.x; c < columns; c += gridDim.x) {
        Scalar* b = B + c * ldb;
        for (Index i = threadIdx.x; i < w; i += blockDim.x) b[i] = X[i + c * ldx];
        __syncthreads();
        for (Index k = 0; k < w; k++) {
            const Scalar known = b[k];
            for (Index i = k + 1 + threadIdx.x; i < w; i += blockDim.x) {
                b[i] = subtract_product(L[i + k * ldl], known, b[i]);
            }
            __syncthreads();
        }
    }
}

// T <- A[perm]; a thread takes one row of several columns.
extern "C" __global__ void gather_rows(const int* __restrict__ perm, const Scalar* __restrict__ A,
                                       Index lda, Scalar* __restrict__ T, Index rows,
                                       Index columns)
{
    const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    const Scalar* source = A + perm[i];
    const Index c0 = Index(blockIdx.y) * 8;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        if (c0 + c < columns) T[i + (c0 + c) * rows] = source[(c0 + c) * lda];
    }
}
