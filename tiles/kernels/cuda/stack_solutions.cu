// Solutions with the factors of small square matrices, a block for some columns of a matrix, a
// thread for each row.  Compiled with -DMOST (the largest order), -DGROUP, -DWIDTH (how many
// columns), and -DPROBES (1 if condition numbers are estimated, else 0).

#include "condition.cuh"

constexpr int STEPS = 3;                 // most steps of refinement
constexpr int COLUMNS = WIDTH + PROBES;  // that are solved for together
// Blocks for which a multiprocessor keeps registers.  17 columns of complex128 want more than there
// are for eight blocks of order 64, but then a thousand matrices are in work at once.  Without
// probes a matrix mostly has several blocks, for its inverse, and registers are worth more.
constexpr int RESIDENT = PROBES && MOST == 64 && BYTES<COLUMNS> > 256 ? 8 : BLOCKS<WIDTH + 1>;

// A matrix of a stack in any memory order; no `first` stands for the identity.
struct Given {
    const Scalar* first;
    Index down, across;

    __device__ const Scalar* row(int i) const { return first + i * down; }
    __device__ Scalar operator()(int i, Index j) const
    {
        return first ? first[i * down + j * across] : make_scalar(i == j);
    }
};

// What a block has of a system: some columns, and of each the thread's row.
struct System {
    Given A, B;
    Scalar* X;      // this thread's row of the first column
    const int* to;  // which columns of X are solved for; null for the same as of B
    int n, row;     // the row of A and B that the interchanges have brought here; -1 for none
    Index from;     // the first column of B
    int columns;    // how many there are

    __device__ bool has(int c) const { return row >= 0 && c < columns; }
    __device__ Scalar& x(int c) const { return X[(to ? to[from + c] : from + c) * n]; }
};

struct Sums {
    double size[WIDTH], left[WIDTH];  // sums of sizes in columns of X, and of B - A X
};

// x <- this thread's row of B, and no probe
__device__ inline void load(Scalar (&x)[COLUMNS], const System& of)
{
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        x[c] = of.has(c) ? of.B(of.row, of.from + c) : make_scalar(0);
    }
}

// r <- r - A X
__device__ inline void subtract_product_with(Scalar (&r)[COLUMNS], const System& of,
                                             Group<COLUMNS>& s)
{
    for (int first = 0; first < of.n; first += GROUP) {
        const int at = int(threadIdx.x) - first, count = min(GROUP, of.n - first);
        if (0 <= at && at < count) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) s.rows[at][c] = of.has(c) ? of.x(c) : make_scalar(0);
        }
        __syncthreads();
        if (of.row >= 0) {
            const Line line = {of.A.row(of.row), of.A.across, false};
            subtract_rows(r, s, line.from(first), count);
        }
        __syncthreads();
    }
}

// Add up the sizes in columns of X, and of r.
__device__ inline void add_up(const Scalar (&r)[COLUMNS], const System& of, Sums& s)
{
    for (int c = threadIdx.x; c < WIDTH; c += blockDim.x) s.size[c] = s.left[c] = 0;
    __syncthreads();
#pragma unroll
    for (int c = 0; c < WIDTH; c++) {
        const double size = warp_sum(of.has(c) ? pivot_size(of.x(c)) : 0);
        const double left = warp_sum(pivot_size(r[c]));
        if (threadIdx.x % 32 == 0) {
            atomicAdd(s.size + c, size);
            atomicAdd(s.left + c, left);
        }
    }
    __syncthreads();
}

// The largest of the columns' backward errors.
__device__ inline double backward_error(const Sums& s, double anorm)
{
    double error = 0;
    for (int c = 0; c < WIDTH; c++) {
        error = larger(error, s.left[c] == 0 ? 0 : s.left[c] / (anorm * s.size[c]));
    }
    return error;
}

struct Solving {
    Group<COLUMNS> group;
    Sums sums;
};

// Solve, and refine; returns the largest 1-norm of a column of X.  `probed`, the thread's entry of
// the probe, is overwritten by that of the solution.
__device__ inline double solve_system(const System& of, const Scalar* factors, Index kind,
                                      const double* norm, double enough, Scalar& probed, Solving& s)
{
    const int zero = PROBES || of.B.first ? 0 : int(of.from);  // inverses have no probes
    Scalar x[COLUMNS];
    double previous = 0;
    for (int step = 0; step <= STEPS; step++) {
        load(x, of);
        if (step > 0) {
            subtract_product_with(x, of, s.group);
            add_up(x, of, s.sums);
            const double error = backward_error(s.sums, *norm);
            if (!(error > enough && (step == 1 || error < previous / 2))) break;
            previous = error;
        } else if (PROBES) {
            x[COLUMNS - 1] = probed;
        }
        solve_with(factors, of.n, kind, x, s.group, zero);
        if (PROBES && step == 0) probed = x[COLUMNS - 1];
#pragma unroll
        for (int c = 0; c < WIDTH; c++) {
            if (of.has(c)) of.x(c) = step ? add(of.x(c), x[c]) : x[c];
        }
        if (!of.A.first) break;
    }
    __syncthreads();
    add_up(x, of, s.sums);
    double largest = 0;
    for (int c = 0; c < WIDTH; c++) largest = larger(largest, s.sums.size[c]);
    return largest;
}

struct Judging {
    Group<1> group;
    Candidates candidates;
    double of_warp[32];
};

// Solve from packed factors with right-hand sides B, or the identity (but not with transposed LU
// factors); X is column-major.  Row i of P A is row perm[i] of A; without `perm`, nothing was
// interchanged.  With A and its 1-norms, X of LU factors is refined while its backward error is
// above `enough` and halves, as LAPACK does.  `size`, one row for each part of the columns, gets
// the largest 1-norm of these in X.  With probes, `rcond` gets estimates of reciprocal condition
// numbers, from the 1-norms.
extern "C" __global__ void __launch_bounds__(MOST, RESIDENT)
    solve(const Scalar* factors, Index kind, Index order, const int* perm,  //
          const Scalar* B, Index bstep, Index bdown, Index bacross, Index nrhs, Scalar* X,
          const Scalar* A, Index astep, Index adown, Index aacross, const double* norm,
          double enough, double* size, Index matrices, double once, double twice, double* rcond)
{
    __shared__ union {
        Solving solving;
        Judging judging;
    } shared;
    const Index parts = (nrhs + WIDTH - 1) / WIDTH, matrix = blockIdx.x / parts;
    const Index part = blockIdx.x % parts;
    const int n = int(order), row = threadIdx.x;
    factors += matrix * order * order;
    if (norm) norm += matrix;
    const bool turned = kind == TRANSPOSED || kind == ADJOINT;
    if (perm) perm += matrix * n;
    const int moved = row < n && perm ? perm[row] : row;
    System of;
    of.A = {A ? A + matrix * astep : A, adown, aacross};
    of.B = {B ? B + matrix * bstep : B, bdown, bacross};
    // A^-1 = U^-1 L^-1 P has the columns of U^-1 L^-1 in another order
    of.to = B ? nullptr : perm;
    of.n = n;
    of.row = row >= n ? -1 : turned || !B ? row : moved;
    of.from = part * WIDTH;
    of.columns = int(min(Index(WIDTH), nrhs - of.from));
    of.X = X + matrix * nrhs * n + (turned ? moved : row);
    Scalar probed = row < n ? probe(row) : make_scalar(0);
    const double largest = solve_system(of, factors, kind, norm, enough, probed, shared.solving);
    if (size && row == 0) size[part * matrices + matrix] = largest;
    if (PROBES && part == 0) {
        __syncthreads();
        Judging& s = shared.judging;
        const Inverse inverse = {factors, n, kind, s.group, s.candidates, s.of_warp};
        const double found = reciprocal_condition(inverse, probed, *norm, {once, twice});
        if (row == 0) rcond[matrix] = found;
    }
}
