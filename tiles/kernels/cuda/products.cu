// Single-precision matrices as sums of two in half precision, for products on tensor cores.
// Compiled with -DREAL=float and -DCOMPLEX=0|1.

#include "scalar.cuh"

typedef unsigned short Half;

// What the products of a pair of operands need: the largest moduli of both, as bits, the scale of
// their product with either sign, and the numbers 0 and 1.
struct Scales {
    unsigned largest[2];
    float scale, negative, zero, one;
};

__device__ inline Half to_half(float x)
{
    Half half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

__device__ inline float to_float(Half x)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
}

// The exponents of the powers of two that scale a pair of operands.
struct Exponents {
    int of[2];
};

// The exponent of the power of two that brings the largest modulus to 2^14 or more, below 2^15:
// numbers down to 2^-28 of it then have two parts of eleven bits.
__device__ inline int exponent(unsigned largest)
{
    const int biased = largest >> 23;
    if (biased == 255) return 0;  // not finite
    return min(141 - max(biased, 1), 127);
}

// Those of both operands, less what would make the scale of their product subnormal, which products
// take for zero.
__device__ inline Exponents exponents(const Scales* scales)
{
    Exponents found{{exponent(scales->largest[0]), exponent(scales->largest[1])}};
    const int beyond = max(found.of[0] + found.of[1] - 126, 0);
    found.of[0] -= beyond / 2;
    found.of[1] -= beyond - beyond / 2;
    return found;
}

// scales->largest[operand] <- the largest modulus of a real or imaginary part, if it is larger.
extern "C" __global__ void largest_part(const Scalar* __restrict__ X, Index ldx, Index rows,
                                        Index columns, Scales* scales, Index operand)
{
    const Index row = blockIdx.x * Index(blockDim.x) + threadIdx.x;
    unsigned largest = 0;
    if (row < rows) {
        for (Index column = blockIdx.y; column < columns; column += gridDim.y) {
            const Scalar x = X[row + column * ldx];
#if COMPLEX
            largest = max(largest, __float_as_uint(fabsf(x.im)));
            largest = max(largest, __float_as_uint(fabsf(x.re)));
#else
            largest = max(largest, __float_as_uint(fabsf(x)));
#endif
        }
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % 32 == 0 && largest) atomicMax(&scales->largest[operand], largest);
}

// Writes a number's two parts in three places: of a left operand low, high, high; of a right one
// high, low, high.  The largest products are the last to be added: tensor cores round sums towards
// zero.
__device__ inline void keep_parts(float x, Half* Y, Index part, bool left)
{
    const Half high = to_half(x), low = to_half(x - to_float(high));
    Y[0] = left ? low : high;
    Y[part] = left ? high : low;
    Y[2 * part] = high;
}

// Splits X, of `rows` x `columns`, scaled, into three blocks of real numbers, `part` elements
// apart. A complex number x + iy becomes in a left operand the 2 x 2 block (x, -y; y, x), in a
// right one (x; y), or, where it is to be transposed and conjugated, the row (x, -y).
extern "C" __global__ void split(const Scalar* __restrict__ X, Index ldx, Index rows, Index columns,
                                 Half* __restrict__ Y, Index ldy, Index part, Index left,
                                 Index conjugated, Scales* scales)
{
    const Exponents both = exponents(scales);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        const float scale = ldexpf(1, -both.of[0] - both.of[1]);
        scales->scale = scale;
        scales->negative = -scale;
        scales->zero = 0;
        scales->one = 1;
    }
    const Index row = blockIdx.x * Index(blockDim.x) + threadIdx.x;
    if (row >= rows) return;
    const float scale = ldexpf(1, both.of[left ? 0 : 1]);
    for (Index column = blockIdx.y; column < columns; column += gridDim.y) {
        const Scalar x = X[row + column * ldx];
#if COMPLEX
        const float re = scale * x.re, im = scale * x.im;
        if (left) {
            Half* block = Y + 2 * row + 2 * column * ldy;
            keep_parts(re, block, part, true);
            keep_parts(im, block + 1, part, true);
            keep_parts(-im, block + ldy, part, true);
            keep_parts(re, block + ldy + 1, part, true);
        } else if (conjugated) {
            keep_parts(re, Y + row + 2 * column * ldy, part, false);
            keep_parts(-im, Y + row + (2 * column + 1) * ldy, part, false);
        } else {
            keep_parts(re, Y + 2 * row + column * ldy, part, false);
            keep_parts(im, Y + 2 * row + 1 + column * ldy, part, false);
        }
#else
        keep_parts(scale * x, Y + row + column * ldy, part, left);
#endif
    }
}
