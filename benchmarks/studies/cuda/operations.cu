// One operation on each element, rounded as IEEE 754 says, or as fast arithmetic does.
//
// Compiled with -DREAL=float|double and -DMODE=
//   0  correctly rounded
//   1  what nvcc's -use_fast_math makes of division, reciprocal and square root (float)
//   2  factors rounded to TF32, as tensor cores read them (float)

enum Operation { SUM, DIFFERENCE, PRODUCT, QUOTIENT, FUSED, ROOT, RECIPROCAL };

__device__ inline float approximate_quotient(float a, float b)
{
    float q;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(q) : "f"(a), "f"(b));
    return q;
}

__device__ inline float approximate_root(float a)
{
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}

__device__ inline float approximate_reciprocal(float a)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}

#if MODE == 2
__device__ inline float to_tf32(float a)
{
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(a));
    return __uint_as_float(bits);
}
#endif

__device__ inline REAL operate(Operation operation, REAL a, REAL b, REAL c)
{
#if MODE == 2
    a = to_tf32(a);
    b = to_tf32(b);
#endif
    switch (operation) {
        case SUM:
            return a + b;
        case DIFFERENCE:
            return a - b;
        case PRODUCT:
            return a * b;
        case FUSED:
            return fma(a, b, c);
#if MODE == 1
        case QUOTIENT:
            return approximate_quotient(a, b);
        case ROOT:
            return approximate_root(a);
        default:
            return approximate_reciprocal(a);
#else
        case QUOTIENT:
            return a / b;
        case ROOT:
            return sqrt(a);
        default:
            return REAL(1) / a;
#endif
    }
}

extern "C" __global__ void operations(long long operation, const REAL* a, const REAL* b,
                                      const REAL* c, REAL* out, long long n)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = operate(Operation(operation), a[i], b[i], c[i]);
}
