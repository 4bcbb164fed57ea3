// A strip of rows of a QR leaf, up to 32 columns wide, in the registers of one warp.
// Compiled with -DROWS, those of a strip.
//
// Lane l holds the columns l % 8 + 8 k, k < 4, of every fourth pack of rows, from pack
// l / 8 on: a compromise between sums over rows, which are short for many rows a lane,
// and the passing round of a column, which is short for many columns a lane.

#pragma once

#include "scalar.cuh"

constexpr int PACK = 16 / sizeof(Scalar);
constexpr int HELD = ROWS / 4;  // rows of a lane
static_assert(HELD % PACK == 0, "strip shape");

__device__ inline int lane_id() { return threadIdx.x % 32; }

struct Strip {
    Scalar a[4][HELD];

    static __device__ int row(int n) { return PACK * (4 * (n / PACK) + lane_id() / 8) + n % PACK; }

    // Rows outside `from` .. `end` count as zero, and are not stored.
    __device__ void load(const Scalar* A, Index lda, int from, int end, int w)
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int c = lane_id() % 8 + 8 * k;
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                const bool inside = row(n) >= from && row(n) < end && c < w;
                a[k][n] = inside ? A[row(n) + c * lda] : make_scalar(0);
            }
        }
    }

    __device__ void store(Scalar* A, Index lda, int from, int end, int w) const
    {
        asm volatile("" : "+l"(lda));  // else the addresses of `load` would stay in registers
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int c = lane_id() % 8 + 8 * k;
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                if (row(n) >= from && row(n) < end && c < w) A[row(n) + c * lda] = a[k][n];
            }
        }
    }

    // x <- column j, zero up to the row `done`.
    __device__ void spread(Scalar (&x)[ROWS], int j, int done) const
    {
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (lane_id() % 8 + 8 * k != j) continue;
#pragma unroll
            for (int n = 0; n < HELD; n++) x[row(n)] = a[k][n];
        }
        __syncwarp();
        if (done < 0) return;
        for (int n = lane_id(); n <= done && n < ROWS; n += 32) x[n] = make_scalar(0);
        __syncwarp();
    }

    // Subtract from each column x times its g.
    __device__ void update(const Scalar (&x)[ROWS], const Scalar (&g)[32])
    {
        Scalar of[4];
#pragma unroll
        for (int k = 0; k < 4; k++) of[k] = g[lane_id() % 8 + 8 * k];
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            const Scalar value = x[row(n)];
#pragma unroll
            for (int k = 0; k < 4; k++) a[k][n] = subtract_product(value, of[k], a[k][n]);
        }
    }

    __device__ void scale(const Scalar (&by)[32])
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const Scalar factor = by[lane_id() % 8 + 8 * k];
#pragma unroll
            for (int n = 0; n < HELD; n++) a[k][n] = multiply(factor, a[k][n]);
        }
    }

    // x^H times column c, on lane c.
    __device__ Scalar product(const Scalar (&x)[ROWS]) const
    {
        Scalar sum[4] = {make_scalar(0), make_scalar(0), make_scalar(0), make_scalar(0)};
#pragma unroll
        for (int n = 0; n < HELD; n++) {
            const Scalar value = conj(x[row(n)]);
#pragma unroll
            for (int k = 0; k < 4; k++) sum[k] = add_product(value, a[k][n], sum[k]);
        }
        // Each lane hands on what others finish: two columns, and then one.
        const bool high = lane_id() & 16, odd = lane_id() & 8;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const Scalar other = shuffle(high ? sum[k] : sum[k + 2], lane_id() ^ 16);
            sum[k] = add(high ? sum[k + 2] : sum[k], other);
        }
        return add(odd ? sum[1] : sum[0], shuffle(odd ? sum[0] : sum[1], lane_id() ^ 8));
    }

    // out <- row `wanted`.
    __device__ void pick(Scalar* out, int wanted) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                if (row(n) == wanted) out[lane_id() % 8 + 8 * k] = a[k][n];
            }
        }
    }
};
