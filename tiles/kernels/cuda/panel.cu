// One leaf of the recursive panel: m x w, w <= IB, with partial pivoting.
//
// Compiled with -DUNROLL, -DIB (a multiple of it) and -DTHREADS after scalar.cu.  A thread
// keeps one row in registers, so that a column costs no memory traffic; all
// blocks must be resident, because each column ends in an exchange between them.
//
// The exchange needs neither a counter nor a fence: what a block publishes (its
// largest magnitude, and the row that has it) travels in units that carry the
// number of the column beside each word, so a reader waits for the word itself.
// Numbers grow from launch to launch, so nothing is reset in between.  Two
// buffers alternate: a block publishes column j + 2 only after every block has
// published column j + 1, that is, after all have read column j.

constexpr int WARPS = THREADS / 32;
constexpr int WORDS = IB * COMPONENTS;  // of a row
constexpr int ROW_UNITS = WORDS + 1;    // a row and its index
constexpr int ROW_LOADS = (ROW_UNITS + 31) / 32;
static_assert(IB % UNROLL == 0 && WARPS >= 2 && WARPS <= 32, "launch shape");

template <int BYTES> struct Exchange;

template <> struct Exchange<8> {
    using Bits = unsigned long long;
    using Unit = uint4;  // low word, number, high word, number: 8 bytes arrive together
    static __device__ void put(Unit* unit, Bits bits, unsigned number)
    {
        asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(unit),
                     "r"(unsigned(bits)), "r"(number), "r"(unsigned(bits >> 32))
                     : "memory");
    }
    static __device__ bool get(const Unit* unit, unsigned number, Bits& bits)
    {
        uint4 v;
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(unit)
                     : "memory");
        bits = (Bits(v.z) << 32) | v.x;
        return v.y == number && v.w == number;
    }
    static __device__ Bits from_real(double x) { return __double_as_longlong(x); }
    static __device__ double to_real(Bits x) { return __longlong_as_double(x); }
};

template <> struct Exchange<4> {
    using Bits = unsigned;
    using Unit = uint2;
    static __device__ void put(Unit* unit, Bits bits, unsigned number)
    {
        asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(unit), "r"(bits),
                     "r"(number)
                     : "memory");
    }
    static __device__ bool get(const Unit* unit, unsigned number, Bits& bits)
    {
        uint2 v;
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v.x), "=r"(v.y)
                     : "l"(unit)
                     : "memory");
        bits = v.x;
        return v.y == number;
    }
    static __device__ Bits from_real(float x) { return __float_as_uint(x); }
    static __device__ float to_real(Bits x) { return __uint_as_float(x); }
};

using Words = Exchange<sizeof(REAL)>;
using Bits = Words::Bits;
using Unit = Words::Unit;

// The bits of magnitudes order as integers do (NaN above all, so that NaN is
// chosen and spreads, as it should).  0 is kept for rows that do not compete.
__device__ inline Bits pivot_key(Scalar x) { return (Words::from_real(pivot_size(x)) << 1) | 1; }

__device__ inline unsigned warp_max(unsigned x)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, x);
#else
    for (int step = 16; step; step /= 2) x = max(x, __shfl_xor_sync(~0u, x, step));
    return x;
#endif
}

__device__ inline unsigned long long warp_max(unsigned long long x)
{
    const unsigned high = warp_max(unsigned(x >> 32));
    const unsigned low = warp_max(unsigned(x >> 32) == high ? unsigned(x) : 0u);
    return ((unsigned long long)high << 32) | low;
}

// Unit lane + 32 n goes to out[n]; all loads are in flight at once.
template <int N>
__device__ inline void receive(const Unit* units, int count, unsigned number, Bits (&out)[N])
{
    const int lane = threadIdx.x % 32;
    bool arrived;
    do {
        arrived = true;
#pragma unroll
        for (int n = 0; n < N; n++) {
            out[n] = 0;
            if (lane + 32 * n < count) arrived &= Words::get(units + lane + 32 * n, number, out[n]);
        }
    } while (!arrived);
    __syncwarp();
}

__device__ inline void keep_row(Scalar* row, const Scalar (&a)[IB])
{
#pragma unroll
    for (int c = 0; c < IB; c++) row[c] = a[c];
}

// The warp of the thread that kept the row in shared memory sends it.
__device__ inline void publish_row(Unit* units, const Scalar* row, int index, unsigned number)
{
    __syncwarp();
    for (int word = threadIdx.x % 32; word < WORDS; word += 32) {
        Words::put(units + word, Words::from_real(reinterpret_cast<const REAL*>(row)[word]), number);
    }
    if (threadIdx.x % 32 == 0) Words::put(units + WORDS, index, number);
}

// A warp waits for a row and lays it in shared memory; returns the row's index.
__device__ inline int receive_row(const Unit* units, unsigned number, Scalar* row)
{
    const int lane = threadIdx.x % 32;
    Bits words[ROW_LOADS];
    receive(units, ROW_UNITS, number, words);
#pragma unroll
    for (int n = 0; n < ROW_LOADS; n++) {
        const int word = lane + 32 * n;
        if (word < WORDS) reinterpret_cast<REAL*>(row)[word] = Words::to_real(words[n]);
    }
    return __shfl_sync(~0u, int(words[WORDS / 32]), WORDS % 32);
}

// The block with the largest key, the first of them where several have it.
__device__ inline int winning_block(const Unit* keys, unsigned number)
{
    Bits mine = 0;
    unsigned block = ~0u;
    for (int first = 0; first < gridDim.x; first += 128) {
        Bits key[4];
        receive(keys + first, gridDim.x - first, number, key);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (key[n] > mine) {
                mine = key[n];
                block = first + threadIdx.x % 32 + 32 * n;
            }
        }
    }
    const Bits best = warp_max(mine);
    return ~warp_max(mine == best ? ~block : 0u);  // the largest complement is the smallest
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    getrf_leaf(Scalar* __restrict__ A, Index lda, Index rows, Index columns, Index first_row,
               int* __restrict__ ipiv, int* __restrict__ info, Unit* exchange, Index first_number)
{
    const int m = int(rows), w = int(columns), row0 = int(first_row);
    const unsigned number0 = unsigned(first_number);
    __shared__ Bits warp_key[WARPS];
    __shared__ int warp_row[WARPS];
    __shared__ __align__(16) Scalar pivot_row[IB];
    __shared__ __align__(16) Scalar top_row[IB];
    __shared__ __align__(16) Scalar my_pivot_row[IB];
    __shared__ __align__(16) Scalar my_top_row[IB];
    __shared__ int pivot;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
    const int row = blockIdx.x * THREADS + threadIdx.x;
    const bool inside = row < m;
    const int half = blocks + (blocks + 1) * ROW_UNITS;

    Scalar a[IB];
#pragma unroll
    for (int c = 0; c < IB; c++) a[c] = inside && c < w ? A[row + c * lda] : make_scalar(0);
    int first_zero = row == 0 && row0 > 0 ? *info : 0;

    // Column `base + u` always stands in a[u]: the registers turn by UNROLL
    // after each round, and stand as they did at first after the last one.
    for (int base = 0; base < IB; base += UNROLL) {
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int j = base + u;
            if (j >= w) continue;
            Bits key = inside && row >= j ? pivot_key(a[u]) : 0;
            Bits best = warp_max(key);
            int winner = __ffs(__ballot_sync(~0u, key == best)) - 1;
            if (lane == 0) {
                warp_key[warp] = best;
                warp_row[warp] = row + winner;
            }
            __syncthreads();
            key = lane < WARPS ? warp_key[lane] : 0;
            best = warp_max(key);
            winner = warp_row[__ffs(__ballot_sync(~0u, key == best)) - 1];
            if (row == winner) keep_row(blocks == 1 ? pivot_row : my_pivot_row, a);
            if (row == j) keep_row(blocks == 1 ? top_row : my_top_row, a);
            if (blocks == 1) {
                if (row == winner) pivot = row;
            } else {
                Unit* keys = exchange + (j & 1) * half;
                Unit* units = keys + blocks;
                const unsigned number = number0 + j;
                const int warp_first = row - lane;
                if (warp_first == (winner & ~31)) {
                    if (lane == 0) Words::put(keys + blockIdx.x, best, number);
                    publish_row(units + blockIdx.x * ROW_UNITS, my_pivot_row, winner, number);
                }
                if (warp_first == (j & ~31)) {
                    publish_row(units + blocks * ROW_UNITS, my_top_row, j, number);
                }
                if (warp == 0) {
                    const int block = winning_block(keys, number);
                    const int index =
                        receive_row(units + block * ROW_UNITS, number, pivot_row);
                    if (lane == 0) pivot = index;
                } else if (warp == 1) {
                    receive_row(units + blocks * ROW_UNITS, number, top_row);
                }
            }
            __syncthreads();
            const int p = pivot;
            const Scalar d = pivot_row[u];
            if (row == p) {
#pragma unroll
                for (int c = 0; c < IB; c++) a[c] = top_row[c];
            }
            if (row == j) {
#pragma unroll
                for (int c = 0; c < IB; c++) a[c] = pivot_row[c];
            }
            if (inside && row > j) {
                if (!is_zero(d)) a[u] = divide(a[u], d);
                const Scalar l = a[u];
#pragma unroll
                for (int g = 0; g < IB / UNROLL; g++) {
                    if (g > 0 && base + g * UNROLL >= w) continue;
#pragma unroll
                    for (int c = g * UNROLL; c < (g + 1) * UNROLL; c++) {
                        if (c > u) a[c] = subtract_product(l, pivot_row[c], a[c]);
                    }
                }
            }
            if (row == 0) {
                ipiv[j] = row0 + p;
                if (is_zero(d) && first_zero == 0) first_zero = row0 + j + 1;
            }
        }
        Scalar turned[UNROLL];
#pragma unroll
        for (int c = 0; c < UNROLL; c++) turned[c] = a[c];
#pragma unroll
        for (int c = 0; c < IB - UNROLL; c++) a[c] = a[c + UNROLL];
#pragma unroll
        for (int c = 0; c < UNROLL; c++) a[IB - UNROLL + c] = turned[c];
    }
    if (row == 0) *info = first_zero;
    if (!inside) return;
    asm volatile("" : "+l"(lda));  // else the addresses of the loads would stay in registers
#pragma unroll
    for (int c = 0; c < IB; c++) {
        if (c < w) A[row + c * lda] = a[c];
    }
}
