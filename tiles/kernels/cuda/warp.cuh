// What a warp or a block finds together: sums, and the largest of its threads' numbers.

#pragma once

#include "scalar.cuh"

__device__ inline unsigned long long bits_of(double x) { return __double_as_longlong(x); }
__device__ inline unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ inline double real_of(unsigned long long x) { return __longlong_as_double(x); }
__device__ inline float real_of(unsigned x) { return __uint_as_float(x); }
using Bits = decltype(bits_of(REAL()));

// The bits of magnitudes order as integers do (NaN above all, so that NaN is
// chosen and spreads, as it should).  0 is kept for rows that do not compete.
__device__ inline Bits magnitude_key(REAL x) { return (bits_of(x) << 1) | 1; }
__device__ inline Bits pivot_key(Scalar x) { return magnitude_key(pivot_size(x)); }

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

constexpr int NOBODY = 0x7fffffff;

// The least of numbers that are not negative.
__device__ inline int warp_min(int x) { return ~warp_max(~unsigned(x)); }

// The sum over a warp, on its lane 0.
__device__ inline double warp_sum(double x)
{
    for (int step = 16; step; step /= 2) x += __shfl_down_sync(~0u, x, step);
    return x;
}

#if COMPLEX
__device__ inline Scalar warp_sum(Scalar x)
{
    return {REAL(warp_sum(double(x.re))), REAL(warp_sum(double(x.im)))};
}
#endif

// The same on all its lanes.
__device__ inline double warp_sum_on_all(double x)
{
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// The larger of two sizes, and NaN if one is NaN.
__device__ inline double larger(double a, double b) { return b > a || b != b ? b : a; }

// The sum over a block, and the largest size, for all its threads; `of_warp` has a place for each
// warp.
__device__ inline double block_sum(double x, double* of_warp)
{
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < blockDim.x / 32; i++) x += of_warp[i];
    __syncthreads();
    return x;
}

__device__ inline double block_largest(double x, double* of_warp)
{
    for (int step = 16; step; step /= 2) x = larger(x, __shfl_xor_sync(~0u, x, step));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < blockDim.x / 32; i++) x = larger(x, of_warp[i]);
    __syncthreads();
    return x;
}
