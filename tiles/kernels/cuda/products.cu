// Single-precision matrices as sums of two in TF32, for products on tensor cores.  Compiled with
// -DREAL=float and -DCOMPLEX=0|1.

#include "scalar.cuh"

// The number of TF32 nearest to x or, where that would overflow, the one below.
__device__ inline float to_tf32(float x)
{
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    const float nearest = __uint_as_float(bits);
    return isinf(nearest) ? __uint_as_float(__float_as_uint(x) & 0xffffe000u) : nearest;
}

// Writes a number's two parts in three places: of a left operand low, high, high; of a right one
// high, low, high.  The largest products are the last to be added: tensor cores round sums towards
// zero.
__device__ inline void keep_parts(float x, float* Y, Index part, bool left)
{
    const float high = to_tf32(x), low = to_tf32(x - high);
    Y[0] = left ? low : high;
    Y[part] = left ? high : low;
    Y[2 * part] = high;
}

// Splits X, of `rows` x `columns`, into three blocks of real numbers, `part` elements apart.  A
// complex number x + iy becomes in a left operand the 2 x 2 block (x, -y; y, x), in a right one
// (x; y), or, where it is to be transposed and conjugated, the row (x, -y).
extern "C" __global__ void split(const Scalar* __restrict__ X, Index ldx, Index rows, Index columns,
                                 float* __restrict__ Y, Index ldy, Index part, Index left,
                                 Index conjugated)
{
    const Index row = blockIdx.x * Index(blockDim.x) + threadIdx.x;
    if (row >= rows) return;
    for (Index column = blockIdx.y; column < columns; column += gridDim.y) {
        const Scalar x = X[row + column * ldx];
#if COMPLEX
        if (left) {
            float* block = Y + 2 * row + 2 * column * ldy;
            keep_parts(x.re, block, part, true);
            keep_parts(x.im, block + 1, part, true);
            keep_parts(-x.im, block + ldy, part, true);
            keep_parts(x.re, block + ldy + 1, part, true);
        } else if (conjugated) {
            keep_parts(x.re, Y + row + 2 * column * ldy, part, false);
            keep_parts(-x.im, Y + row + (2 * column + 1) * ldy, part, false);
        } else {
            keep_parts(x.re, Y + 2 * row + column * ldy, part, false);
            keep_parts(x.im, Y + 2 * row + 1 + column * ldy, part, false);
        }
#else
        keep_parts(x, Y + row + column * ldy, part, left);
#endif
    }
}
