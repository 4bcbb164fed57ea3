// C = op(A) op(B) for column-major matrices, with a block of C in the registers of each thread.
//
// A block of BM x BN entries of C belongs to a block of threads, and TM x TN of them to a thread.
// Slices of BK columns of op(A) and rows of op(B) go through shared memory, where each is read by
// many threads; from there TM + TN numbers go to registers, for TM TN multiplications.  With
// STAGED=0, as in Volkov's kernel, a thread reads its rows of op(A) straight to registers.
//
// Threads own entries that are BM / TM rows and BN / TN columns apart: threads side by side read
// neighbours from shared memory, and write neighbours of C.  Sizes need not be multiples of
// anything: what is beyond a matrix counts as zero.
//
// Compiled with -DREAL=float|double, -DBM= -DBN= -DBK= -DTM= -DTN=, -DSTAGED=0|1, and -DTA=0|1
// -DTB=0|1, which is 1 for a transposed factor.

#define ACROSS (BM / TM)
#define DOWN (BN / TN)
#define THREADS (ACROSS * DOWN)

// Entry i along the wide side, k along the depth, which are rows and columns of op(A), or columns
// and rows of op(B).  FLAT says that neighbours along the wide side are neighbours in memory.
template <bool FLAT>
__device__ inline REAL entry(const REAL* from, long long ld, long long i, long long wide,
                             long long k, long long deep)
{
    return i < wide && k < deep ? from[FLAT ? i + k * ld : k + i * ld] : REAL(0);
}

// A slice of WIDE x DEEP numbers.
template <int WIDE, int DEEP, bool FLAT>
__device__ inline void fetch(REAL (&slice)[DEEP][WIDE + 1], const REAL* from, long long ld,
                             long long first, long long wide, long long depth, long long deep)
{
    for (int place = threadIdx.x; place < WIDE * DEEP; place += THREADS) {
        const int w = FLAT ? place % WIDE : place / DEEP, d = FLAT ? place / WIDE : place % DEEP;
        slice[d][w] = entry<FLAT>(from, ld, first + w, wide, depth + d, deep);
    }
}

// A thread's rows of op(A), from row `first` on, in a slice.
__device__ inline void fetch_own(REAL (&slice)[BK][TM], const REAL* a, long long lda,
                                 long long first, long long m, long long depth, long long deep)
{
#pragma unroll
    for (int d = 0; d < BK; d++)
#pragma unroll
        for (int i = 0; i < TM; i++)
            slice[d][i] = entry<!TA>(a, lda, first + i * ACROSS, m, depth + d, deep);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(long long m, long long n, long long k, const REAL* a, long long lda, const REAL* b,
         long long ldb, REAL* c, long long ldc)
{
    __shared__ REAL rows[BK][BM + 1], columns[BK][BN + 1];
    const long long top = blockIdx.x * (long long)BM, left = blockIdx.y * (long long)BN;
    const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    REAL own[BK][TM], sum[TM][TN] = {};
    for (long long depth = 0; depth < k; depth += BK) {
        if (STAGED) fetch<BM, BK, !TA>(rows, a, lda, top, m, depth, k);
        else fetch_own(own, a, lda, top + x, m, depth, k);
        fetch<BN, BK, TB>(columns, b, ldb, left, n, depth, k);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < BK; d++) {
            REAL row[TM], column[TN];
#pragma unroll
            for (int i = 0; i < TM; i++) row[i] = STAGED ? rows[d][x + i * ACROSS] : own[d][i];
#pragma unroll
            for (int j = 0; j < TN; j++) column[j] = columns[d][y + j * DOWN];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sum[i][j] += row[i] * column[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < TN; j++)
#pragma unroll
        for (int i = 0; i < TM; i++) {
            const long long r = top + x + i * ACROSS, s = left + y + j * DOWN;
            if (r < m && s < n) c[r + s * ldc] = sum[i][j];
        }
}
