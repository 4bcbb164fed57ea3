// Solutions with the factors of small square matrices, a block for some columns of a matrix, a
// thread for each row.  Compiled with -DMOST (the largest order), -DGROUP and -DWIDTH.

#include "rows.cuh"

constexpr int STEPS = 3;  // most steps of refinement

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

struct Sums {
    double size[WIDTH], left[WIDTH];
};

// Add up the moduli of columns over the rows of a block; all sums begin with zeros.
__device__ inline void add_up(const Scalar (&x)[WIDTH], double* sums)
{
#pragma unroll
    for (int c = 0; c < WIDTH; c++) {
        const double sum = warp_sum(modulus(x[c]));
        if (threadIdx.x % 32 == 0) atomicAdd(sums + c, sum);
    }
}

// The largest backward error of columns, for all threads, from their row of X and of B - A X.
__device__ inline double backward_error(const Scalar (&x)[WIDTH], const Scalar (&r)[WIDTH],
                                        double anorm, Sums& s)
{
    for (int c = threadIdx.x; c < WIDTH; c += blockDim.x) s.size[c] = s.left[c] = 0;
    __syncthreads();
    add_up(x, s.size);
    add_up(r, s.left);
    __syncthreads();
    double error = 0;
    for (int c = 0; c < WIDTH; c++) {
        const double one = s.left[c] == 0 ? 0 : s.left[c] / (anorm * s.size[c]);
        error = one > error || one != one ? one : error;
    }
    __syncthreads();
    return error;
}

// What a block has of a system: some columns, and of each the thread's row.
struct System {
    Given A, B;
    Scalar* X;    // this thread's row of the first column
    int n, row;   // the row of A and B that the interchanges have brought here; -1 for none
    Index from;   // the first column of B
    int columns;  // how many there are
};

__device__ inline void load_right_hand_side(Scalar (&x)[WIDTH], const System& of)
{
#pragma unroll
    for (int c = 0; c < WIDTH; c++) {
        x[c] = of.row >= 0 && c < of.columns ? of.B(of.row, of.from + c) : make_scalar(0);
    }
}

__device__ inline void load_solution(Scalar (&x)[WIDTH], const System& of)
{
#pragma unroll
    for (int c = 0; c < WIDTH; c++) {
        x[c] = of.row >= 0 && c < of.columns ? of.X[c * Index(of.n)] : make_scalar(0);
    }
}

// r <- B - A X
__device__ inline void residual(Scalar (&r)[WIDTH], const System& of, Group<WIDTH>& s)
{
    load_right_hand_side(r, of);
    for (int first = 0; first < of.n; first += GROUP) {
        const int at = int(threadIdx.x) - first, count = min(GROUP, of.n - first);
        if (0 <= at && at < count) {
#pragma unroll
            for (int c = 0; c < WIDTH; c++) {
                s.rows[at][c] = c < of.columns ? of.X[c * Index(of.n)] : make_scalar(0);
            }
        }
        __syncthreads();
        if (of.row >= 0) {
            const Line line = {of.A.row(of.row), of.A.across, false};
            subtract_rows(r, s, line.from(first), count);
        }
        __syncthreads();
    }
}

// X <- X + A^-1 (B - A X) while the backward error is above `enough` and halves, as LAPACK does.
__device__ inline void refine(const System& of, const Scalar* factors, double anorm, double enough,
                              Group<WIDTH>& s, Sums& sums)
{
    double previous = 0;
    Scalar r[WIDTH], x[WIDTH];
    for (int step = 0; step < STEPS; step++) {
        residual(r, of, s);
        load_solution(x, of);
        const double error = backward_error(x, r, anorm, sums);
        if (!(error > enough && (step == 0 || error < previous / 2))) return;
        previous = error;
        solve_with(factors, of.n, PLAIN, r, s);
#pragma unroll
        for (int c = 0; c < WIDTH; c++) {
            if (of.row >= 0 && c < of.columns) {
                Scalar& here = of.X[c * Index(of.n)];
                here = add(here, r[c]);
            }
        }
    }
}

// Solve from packed factors with right-hand sides B, or the identity; X is column-major.  Row i of
// P A is row perm[i] of A; without `perm`, nothing was interchanged.  With A and its 1-norms, X
// of LU factors is refined.  Adds 1 to the `verdict` of a matrix whose X is not finite.
extern "C" __global__ void __launch_bounds__(MOST)
    solve(const Scalar* factors, Index kind, Index order, const int* perm,  //
          const Scalar* B, Index bstep, Index bdown, Index bacross, Index nrhs, Scalar* X,
          const Scalar* A, Index astep, Index adown, Index aacross, const double* norm,
          double enough, int* verdict)
{
    __shared__ Group<WIDTH> group;
    __shared__ Sums sums;
    const Index chunks = (nrhs + WIDTH - 1) / WIDTH, matrix = blockIdx.x / chunks;
    const int n = int(order), row = threadIdx.x;
    const bool turned = kind == TRANSPOSED || kind == ADJOINT;
    const int moved = row >= n ? -1 : perm ? perm[matrix * n + row] : row;
    System of;
    of.A = {A ? A + matrix * astep : A, adown, aacross};
    of.B = {B ? B + matrix * bstep : B, bdown, bacross};
    of.n = n;
    of.row = turned && row < n ? row : moved;
    of.from = blockIdx.x % chunks * WIDTH;
    of.columns = int(min(Index(WIDTH), nrhs - of.from));
    of.X = X + (matrix * nrhs + of.from) * n + (turned ? moved : row);
    factors += matrix * order * order;
    Scalar x[WIDTH];
    load_right_hand_side(x, of);
    solve_with(factors, n, kind, x, group);
    bool finite = true;
#pragma unroll
    for (int c = 0; c < WIDTH; c++) {
        if (moved >= 0 && c < of.columns) of.X[c * order] = x[c];
        finite &= is_finite(x[c]);
    }
    if (A) refine(of, factors, norm[matrix], enough, group, sums);
    const bool any = __syncthreads_or(!finite);
    if (any && verdict && row == 0) atomicOr(verdict + matrix, 1);
}
