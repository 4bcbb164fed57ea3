// One Householder reflector.

#pragma once

#include "scalar.cuh"

// What LAPACK's larfg makes of alpha above a column whose squares sum to `rest`:
// H^H (alpha; x) = (beta; 0), H = I - tau v v^H, v = (1; scale x).
struct Reflector {
    REAL beta;
    Scalar tau, scale;
};

// Squares below have lost bits to underflow, while their column, when the panel began,
// was so much larger (see scale_columns) that x counts as zero.
constexpr REAL TINY = REAL(sizeof(REAL) == 8 ? 0x1p-920 : 0x1p-104);

// The square root and its inverse: division and sqrt, one after the other, take longer.
__device__ inline REAL root(REAL x, REAL& inverse)
{
    const REAL first = rsqrt(x), near = x * first;
    const REAL result = fma(fma(-near, near, x), first / 2, near);
    inverse = fma(fma(-first, result, REAL(1)), first, first);
    return result;
}

#if COMPLEX
__device__ inline Reflector reflector(Scalar alpha, REAL rest)
{
    REAL size = fma(alpha.re, alpha.re, fma(alpha.im, alpha.im, rest)), inverse;
    const bool alone = rest == 0 || size < TINY;
    int exponent = 0;
    if (alone) {  // only alpha's phase is left, however small alpha is
        if (alpha.im == 0) return {alpha.re, {0, 0}, {0, 0}};
        exponent = ilogb(fmax(fabs(alpha.re), fabs(alpha.im)));
        alpha = {scalbn(alpha.re, -exponent), scalbn(alpha.im, -exponent)};
        size = fma(alpha.re, alpha.re, alpha.im * alpha.im);
    }
    const REAL beta = -copysign(root(size, inverse), alpha.re);
    inverse = copysign(inverse, beta);
    const Scalar tau = {fma(-alpha.re, inverse, REAL(1)), -alpha.im * inverse};
    if (alone) return {scalbn(beta, exponent), tau, {0, 0}};
    const REAL re = alpha.re - beta, over = 1 / fma(re, re, alpha.im * alpha.im);
    return {beta, tau, {re * over, -alpha.im * over}};
}
#else
__device__ inline Reflector reflector(Scalar alpha, REAL rest)
{
    const REAL size = fma(alpha, alpha, rest);
    if (rest == 0 || size < TINY) return {alpha, 0, 0};
    REAL inverse;
    const REAL beta = -copysign(root(size, inverse), alpha);
    return {beta, fma(fabs(alpha), inverse, REAL(1)), 1 / (alpha - beta)};
}
#endif
