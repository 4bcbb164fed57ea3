// Scalars of the four types.  Compiled with -DREAL=float|double -DCOMPLEX=0|1.

#pragma once

#include "index.cuh"

#if COMPLEX
constexpr int COMPONENTS = 2;
struct __align__(2 * sizeof(REAL)) Scalar {
    REAL re, im;
};

__device__ inline Scalar make_scalar(REAL re) { return {re, REAL(0)}; }
__device__ inline bool is_zero(Scalar x) { return x.re == REAL(0) && x.im == REAL(0); }
__device__ inline REAL real(Scalar a) { return a.re; }
__device__ inline REAL imaginary(Scalar a) { return a.im; }
__device__ inline Scalar conj(Scalar a) { return {a.re, -a.im}; }
__device__ inline Scalar negative(Scalar a) { return {-a.re, -a.im}; }
__device__ inline Scalar add(Scalar a, Scalar b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Scalar scale(Scalar a, REAL by) { return {a.re * by, a.im * by}; }
__device__ inline bool is_nan(Scalar x) { return x.re != x.re; }
__device__ inline bool is_finite(Scalar x) { return isfinite(x.re) && isfinite(x.im); }

// c - a b
__device__ inline Scalar subtract_product(Scalar a, Scalar b, Scalar c)
{
    return {fma(-a.re, b.re, fma(a.im, b.im, c.re)), fma(-a.re, b.im, fma(-a.im, b.re, c.im))};
}

// a / b by Smith's method: no overflow where the quotient has none.
__device__ inline Scalar divide(Scalar a, Scalar b)
{
    const bool swapped = fabs(b.re) < fabs(b.im);
    const REAL large = swapped ? b.im : b.re, small = swapped ? b.re : b.im;
    const REAL ratio = small / large, scale = fma(small, ratio, large);
    const REAL re = swapped ? fma(a.re, ratio, a.im) : fma(a.im, ratio, a.re);
    const REAL im = swapped ? fma(a.im, ratio, -a.re) : fma(-a.re, ratio, a.im);
    return {re / scale, im / scale};
}

// What LAPACK's izamax compares.
__device__ inline REAL pivot_size(Scalar x) { return fabs(x.re) + fabs(x.im); }
__device__ inline Scalar times_power_of_two(Scalar x, int exponent)
{
    return {scalbn(x.re, exponent), scalbn(x.im, exponent)};
}
__device__ inline double modulus(Scalar x) { return hypot(double(x.re), double(x.im)); }

__device__ inline Scalar shuffle(Scalar x, int lane)
{
    return {__shfl_sync(~0u, x.re, lane), __shfl_sync(~0u, x.im, lane)};
}
#else
constexpr int COMPONENTS = 1;
using Scalar = REAL;

__device__ inline Scalar make_scalar(REAL re) { return re; }
__device__ inline bool is_zero(Scalar x) { return x == REAL(0); }
__device__ inline REAL real(Scalar a) { return a; }
__device__ inline REAL imaginary(Scalar a) { return 0; }
__device__ inline Scalar conj(Scalar a) { return a; }
__device__ inline Scalar negative(Scalar a) { return -a; }
__device__ inline Scalar add(Scalar a, Scalar b) { return a + b; }
__device__ inline Scalar scale(Scalar a, REAL by) { return a * by; }
__device__ inline bool is_nan(Scalar x) { return x != x; }
__device__ inline bool is_finite(Scalar x) { return isfinite(x); }
__device__ inline Scalar subtract_product(Scalar a, Scalar b, Scalar c) { return fma(-a, b, c); }
__device__ inline Scalar divide(Scalar a, Scalar b) { return a / b; }
__device__ inline REAL pivot_size(Scalar x) { return fabs(x); }
__device__ inline Scalar times_power_of_two(Scalar x, int exponent) { return scalbn(x, exponent); }
__device__ inline double modulus(Scalar x) { return fabs(double(x)); }
__device__ inline Scalar shuffle(Scalar x, int lane) { return __shfl_sync(~0u, x, lane); }
#endif

// a b + c
__device__ inline Scalar add_product(Scalar a, Scalar b, Scalar c)
{
    return subtract_product(negative(a), b, c);
}
__device__ inline Scalar multiply(Scalar a, Scalar b) { return add_product(a, b, make_scalar(0)); }
