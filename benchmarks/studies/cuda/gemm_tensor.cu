// C = A B for column-major matrices of doubles, by tensor cores, with asynchronous copies.
//
// A block of BM x BN entries of C belongs to a block of threads, 32 x 32 of them to a warp.  While
// the tensor cores work on one slice of BK columns of A and rows of B, the next ones are on their
// way to shared memory.  Slices are padded so that the words of a fragment are in different banks.
// What is beyond a matrix counts as zero.
//
// Compiled with -DBM= -DBN= (multiples of 32), -DSTAGES= slices in shared memory, and -DDEEP=
//   0  tensor instructions of 8 x 8 x 4 (from compute capability 8.0 on)
//   1  of 16 x 8 x 16 (from 9.0 on)

#define BK 16
#define PAD 4
#define WARPS_DOWN (BM / 32)
#define THREADS (32 * WARPS_DOWN * (BN / 32))

struct Slice {
    double a[BK][BM + PAD];
    double b[BN][BK + PAD];
};

// Copies 8 bytes behind the back of the thread, or writes a zero.
__device__ inline void copy_word(double* to, const double* from, bool inside)
{
    const unsigned shared = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? 8 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ inline void fetch(Slice& slice, long long m, long long n, long long k, const double* a,
                             long long lda, const double* b, long long ldb, long long depth)
{
    const long long top = blockIdx.x * (long long)BM, left = blockIdx.y * (long long)BN;
    for (int place = threadIdx.x; place < BM * BK; place += THREADS) {
        const int i = place % BM, d = place / BM;
        const bool inside = top + i < m && depth + d < k;
        copy_word(&slice.a[d][i], inside ? a + top + i + (depth + d) * lda : a, inside);
    }
    for (int place = threadIdx.x; place < BN * BK; place += THREADS) {
        const int d = place % BK, j = place / BK;
        const bool inside = left + j < n && depth + d < k;
        copy_word(&slice.b[j][d], inside ? b + depth + d + (left + j) * ldb : b, inside);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// A warp's 32 x 32 entries of C: `row` and `column` are its first ones in the block.  In fragments,
// thread 4 g + t of a warp has rows g and columns t of A, rows t and columns g of B, and of C row g
// and columns 2 t and 2 t + 1.
#if DEEP

__device__ inline void multiply(const Slice& slice, int row, int column, double (&c)[4][4][2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        double a[8];
#pragma unroll
        for (int q = 0; q < 8; q++) a[q] = slice.a[t + 4 * (q / 2)][row + 16 * i + 8 * (q % 2) + g];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const double* b = &slice.b[column + 8 * j + g][t];
            double (&upper)[2] = c[2 * i][j], (&lower)[2] = c[2 * i + 1][j];
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                : "+d"(upper[0]), "+d"(upper[1]), "+d"(lower[0]), "+d"(lower[1])
                : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]),
                  "d"(a[7]), "d"(b[0]), "d"(b[4]), "d"(b[8]), "d"(b[12]));
        }
    }
}

#else

__device__ inline void multiply(const Slice& slice, int row, int column, double (&c)[4][4][2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int d = 0; d < BK; d += 4) {
        double a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = slice.a[d + t][row + 8 * i + g];
#pragma unroll
        for (int j = 0; j < 4; j++) b[j] = slice.b[column + 8 * j + g][d + t];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                asm volatile(
                    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, "
                    "{%0, %1};"
                    : "+d"(c[i][j][0]), "+d"(c[i][j][1])
                    : "d"(a[i]), "d"(b[j]));
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_tensor(long long m, long long n, long long k, const double* a, long long lda,
                const double* b, long long ldb, double* c, long long ldc)
{
    extern __shared__ __align__(16) unsigned char memory[];
    Slice* slices = reinterpret_cast<Slice*>(memory);
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = warp % WARPS_DOWN * 32, column = warp / WARPS_DOWN * 32;
    const long long count = (k + BK - 1) / BK;
    double sum[4][4][2] = {};

    // Beyond the last slice only zeros are fetched, so that every turn has one group to wait for.
    for (int s = 0; s < STAGES - 1; s++) fetch(slices[s], m, n, k, a, lda, b, ldb, s * BK);
    for (long long s = 0; s < count; s++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const long long next = s + STAGES - 1;
        fetch(slices[next % STAGES], m, n, k, a, lda, b, ldb, next * BK);
        multiply(slices[s % STAGES], row, column, sum);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const long long r = blockIdx.x * (long long)BM + row + 8 * i + g;
                const long long q = blockIdx.y * (long long)BN + column + 8 * j + 2 * t + e;
                if (r < m && q < n) c[r + q * ldc] = sum[i][j][e];
            }
}
