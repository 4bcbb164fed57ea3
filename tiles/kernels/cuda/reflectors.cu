// One leaf of the recursive QR panel: w <= 32 Householder reflectors of m rows, m >= w.
//
// Compiled with -DTHREADS, -DROWS (see strip.cuh) and -DRESIDENT.  A warp keeps a strip of
// the leaf in registers.  With RESIDENT = 0 strips stay in memory, and a warp goes through
// several of them for each column: for any number of rows.  Outside strips a lane is a
// column.
//
// All blocks must be resident, because each column needs an exchange between them: of
// each block's sums, which every block adds in the same order, and of row j.  Two buffers
// alternate: a block publishes column j + 2 only after every block has published column
// j + 1, that is, after all have read column j.

#include "exchange.cuh"
#include "larfg.cuh"
#include "scalar.cuh"
#include "strip.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int UNITS = 32 * COMPONENTS;          // of a row
constexpr int BATCH = 40 / sizeof(Scalar);      // blocks whose sums a warp awaits together
constexpr int LEADER = 1, PUBLISH = WARPS - 1;  // warps that do more than their strips
constexpr int TAKERS = WARPS - 2;  // all but the first, which keeps row j, and the leader

struct Shared {
    __align__(16) Scalar x[WARPS][ROWS];  // column j
    Scalar of_warp[WARPS][32], of_blocks[TAKERS][32];
    Scalar next_row[32], row[32];
    Scalar g[32];      // of column j, what update takes
    Scalar scale[32];  // v is `scale` times what strips hold
    Scalar t[32][32];  // t[c][i] = T[i, c]
};

template <int N>
__device__ inline Scalar sum_of(const Scalar (&sums)[N][32])
{
    Scalar x[4] = {make_scalar(0), make_scalar(0), make_scalar(0), make_scalar(0)};
#pragma unroll
    for (int n = 0; n < N; n++) x[n % 4] = add(x[n % 4], sums[n][lane_id()]);
    return add(add(x[0], x[1]), add(x[2], x[3]));
}

__device__ inline void publish(Unit* units, Scalar x, unsigned number)
{
    const REAL* words = reinterpret_cast<const REAL*>(&x);
#pragma unroll
    for (int n = 0; n < COMPONENTS; n++) {
        Words::put(units + lane_id() + 32 * n, bits_of(words[n]), number);
    }
}

__device__ inline Scalar scalar_of(const Bits* words)
{
    Scalar x;
#pragma unroll
    for (int n = 0; n < COMPONENTS; n++) reinterpret_cast<REAL*>(&x)[n] = real_of(words[n]);
    return x;
}

__device__ inline Scalar receive_row(const Unit* units, unsigned number, unsigned* lost)
{
    Bits words[COMPONENTS];
    receive(units, UNITS, number, lost, words);
    return scalar_of(words);
}

// The sum over a share of the blocks.
__device__ inline Scalar receive_share(const Unit* units, int taker, unsigned number,
                                       unsigned* lost)
{
    const int blocks = gridDim.x, share = (blocks + TAKERS - 1) / TAKERS;
    const int end = min(blocks, (taker + 1) * share);
    Scalar sum = make_scalar(0);
    for (int block = taker * share; block < end; block += BATCH) {
        Bits words[BATCH * COMPONENTS];
        receive(units + block * UNITS, (end - block) * UNITS, number, lost, words);
#pragma unroll
        for (int n = 0; n < BATCH; n++) sum = add(sum, scalar_of(words + n * COMPONENTS));
    }
    return sum;
}

// From t[c][i] = v_i^H v_c for i < c and t[c][c] = tau_c to T; a lane is a row of T.
__device__ inline void finish_t(Scalar (*t)[32], int w, Scalar* T, Index ldt, Scalar* tau)
{
    const int lane = lane_id();
    for (int c = 0; c < w; c++) {
        __syncwarp();
        Scalar sum = make_scalar(0);
#pragma unroll 8
        for (int i = 0; i < c; i++) sum = subtract_product(t[i][lane], t[c][i], sum);
        const Scalar last = t[c][c];
        __syncwarp();
        if (lane < c) t[c][lane] = multiply(last, sum);
        if (lane < w) T[lane + c * ldt] = t[c][lane];
        if (lane == c) tau[c] = last;
    }
}

// What the leading warp knows of column j; its lanes are columns.
struct Leader {
    Scalar y, z, f;  // row j before H^H; v^H and tau v^H times the columns
    Reflector h;

    __device__ void decide(Shared& s, Scalar total, int j)
    {
        h = reflector(shuffle(y, j), real(shuffle(total, j)));
        z = add_product(conj(h.scale), total, y);
        f = multiply(conj(h.tau), z);
        s.g[lane_id()] = lane_id() > j ? multiply(h.scale, f) : make_scalar(0);
        if (lane_id() == j) s.scale[j] = h.scale;
    }

    // Row j of V and of R, and what T's column j is made of.
    __device__ void emit(Shared& s, int j, int w, Scalar* A, Index lda, Scalar* R, Index ldr) const
    {
        const int c = lane_id();
        const Scalar zero = make_scalar(0), scale = c < j ? s.scale[c] : zero;
        s.t[j][c] = c == j ? h.tau : conj(multiply(scale, z));
        if (c >= w) return;
        A[j + c * lda] = c == j ? make_scalar(1) : multiply(scale, y);
        R[j + c * ldr] = c < j ? zero : c == j ? make_scalar(h.beta) : add(y, negative(f));
    }
};

// This warp's strips: one that stays in registers, or all that come from memory in turn.
struct Leaf {
    Scalar* A;
    Index lda;
    int m, w, first, step;
    bool alone;  // in one block
    Strip strip;
    Scalar next, factor;  // row j less `factor` g, where this warp has it

    __device__ bool has(int j) const { return first <= j && j < first + ROWS; }

    __device__ void publish_row(Shared& s, int j, Unit* units, unsigned number)
    {
        const int lane = lane_id();
        if (j == 0 || !RESIDENT) {
            next = lane < w ? A[j + lane * lda] : make_scalar(0);
            factor = j > 0 ? s.x[threadIdx.x / 32][j - first] : make_scalar(0);
        }
        const Scalar y = j > 0 ? subtract_product(factor, s.g[lane], next) : next;
        if (alone) s.row[lane] = y;
        else publish(units, y, number);
    }

    // Row j + 1 before the update by column j: while others wait.
    __device__ void keep_next_row(Shared& s, int j)
    {
        strip.pick(s.next_row, j + 1 - first);
        __syncwarp();
        next = s.next_row[lane_id()];
        factor = s.x[threadIdx.x / 32][j + 1 - first];
    }

    // The update by column j - 1; returns x^H times the columns, x column j below row j.
    __device__ Scalar advance(Shared& s, int j, Unit* units, unsigned number)
    {
        Scalar(&x)[ROWS] = s.x[threadIdx.x / 32];
        Scalar sum = make_scalar(0);
        for (int row = first; row < m; row += step) {
            if (!RESIDENT) {
                strip.load(A + row, lda, j - row, m - row, w);
                if (j > 0) strip.spread(x, j - 1, j - 1 - row);
            }
            if (row == first && has(j)) publish_row(s, j, units, number);
            if (j > 0) strip.update(x, s.g);
            if (!RESIDENT) strip.store(A + row, lda, j + 1 - row, m - row, w);
            strip.spread(x, j, j - row);
            sum = add(sum, strip.product(x));
            if (RESIDENT) break;
        }
        return sum;
    }

    // Rows below the triangle of V.
    __device__ void finish(Shared& s)
    {
        for (int row = first; row < m; row += step) {
            if (!RESIDENT) strip.load(A + row, lda, w - row, m - row, w);
            strip.scale(s.scale);
            strip.store(A + row, lda, w - row, m - row, w);
            if (RESIDENT) break;
        }
    }
};

__device__ __forceinline__ void factor(int number_of_block, int blocks, Scalar* A, Index lda, int m,
                                       int w, Scalar* R, Index ldr, Scalar* T, Index ldt,
                                       Scalar* tau, Unit* exchange, Index first_number,
                                       unsigned* lost)
{
    __shared__ Shared s;
    const int lane = lane_id(), warp = threadIdx.x / 32;
    const int first = (number_of_block * WARPS + warp) * ROWS;
    const bool emits = number_of_block == 0 && warp == LEADER;

    Leaf leaf = {A, lda, m, w, first, blocks * WARPS * ROWS, blocks == 1};
    Leader leader;
    // What is decided on column j - 1 is applied at the start of step j.
    if (RESIDENT) leaf.strip.load(A + first, lda, 0, m - first, w);
    for (int j = 0; j < w; j++) {
        Unit* units = exchange + (j & 1) * (blocks + 1) * UNITS;
        Unit* row_units = units + blocks * UNITS;
        const unsigned number = unsigned(first_number) + j;
        s.of_warp[warp][lane] = leaf.advance(s, j, row_units, number);
        __syncthreads();
        if (blocks > 1 && warp == PUBLISH) {
            publish(units + number_of_block * UNITS, sum_of(s.of_warp), number);
        }
        if (RESIDENT && leaf.has(j + 1)) leaf.keep_next_row(s, j);
        if (blocks > 1) {
            const int taker = warp - (WARPS - TAKERS);
            if (taker >= 0) s.of_blocks[taker][lane] = receive_share(units, taker, number, lost);
            if (warp == LEADER) leader.y = receive_row(row_units, number, lost);
            __syncthreads();
        }
        if (warp == LEADER) {
            if (blocks == 1) leader.y = s.row[lane];
            leader.decide(s, blocks > 1 ? sum_of(s.of_blocks) : sum_of(s.of_warp), j);
        }
        __syncthreads();
        if (emits) leader.emit(s, j, w, A, lda, R, ldr);
    }
    leaf.finish(s);
    if (emits) finish_t(s.t, w, T, ldt, tau);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    geqrf_leaf(Scalar* A, Index lda, Index rows, Index columns, Scalar* R, Index ldr, Scalar* T,
               Index ldt, Scalar* tau, Unit* exchange, Index first_number, unsigned* lost)
{
    factor(blockIdx.x, gridDim.x, A, lda, int(rows), int(columns), R, ldr, T, ldt, tau, exchange,
           first_number, lost);
}

// Leaves of as many matrices as there are blocks, `step` elements apart; those of R and T,
// of order 32, and of tau `step_t` and `step_tau`.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    geqrf_leaves(Scalar* A, Index lda, Index step, Index rows, Index columns, Scalar* R, Scalar* T,
                 Index step_t, Scalar* tau, Index step_tau)
{
    const Index n = blockIdx.x;
    factor(0, 1, A + n * step, lda, int(rows), int(columns), R + n * step_t, 32, T + n * step_t, 32,
           tau + n * step_tau, nullptr, 0, nullptr);
}
