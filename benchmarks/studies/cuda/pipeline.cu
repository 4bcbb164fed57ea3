// Chains of dependent instructions: CHAINS of them in each thread, side by side.
//
// With one chain and one warp, the time of an instruction is its latency.  With more of either,
// others are issued meanwhile, until the pipeline is full.
//
// Compiled with -DCHAINS=n, -DTHREADS= most threads of a block, and -DOPERATION=
//   0  fused multiply-add, float          3  product of 8 x 4 x 8 doubles by tensor cores, a warp
//   1  fused multiply-add, double         4  product of 16 x 8 x 8 TF32 numbers, the same
//   2  reciprocal square root, float      5  product of 16 x 16 x 8 doubles, the same (from 9.0 on)

#if OPERATION == 0

struct Chain {
    float x;
    __device__ void start(int seed) { x = 1 + seed; }
    __device__ void step() { x = fmaf(x, 0.5f, 1.0f); }
    __device__ double value() const { return x; }
};

#elif OPERATION == 1

struct Chain {
    double x;
    __device__ void start(int seed) { x = 1 + seed; }
    __device__ void step() { x = fma(x, 0.5, 1.0); }
    __device__ double value() const { return x; }
};

#elif OPERATION == 2

struct Chain {
    float x;
    __device__ void start(int seed) { x = 1 + seed; }
    __device__ void step() { asm volatile("rsqrt.approx.ftz.f32 %0, %0;" : "+f"(x)); }
    __device__ double value() const { return x; }
};

#elif OPERATION == 3

// All of A is 1/4 and all of B is 1: every step adds 1 to all of C.
struct Chain {
    double c[2];
    __device__ void start(int seed) { c[0] = c[1] = seed; }
    __device__ void step()
    {
        asm volatile(
            "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(c[0]), "+d"(c[1])
            : "d"(0.25), "d"(1.0));
    }
    __device__ double value() const { return c[0] + c[1]; }
};

#elif OPERATION == 4

struct Chain {
    float c[4];
    __device__ void start(int seed) { c[0] = c[1] = c[2] = c[3] = seed; }
    __device__ void step()
    {
        const unsigned eighth = __float_as_uint(0.125f), one = __float_as_uint(1.0f);
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
            "{%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(eighth), "r"(one));
    }
    __device__ double value() const { return c[0] + c[1] + c[2] + c[3]; }
};

#else

struct Chain {
    double c[4];
    __device__ void start(int seed) { c[0] = c[1] = c[2] = c[3] = seed; }
    __device__ void step()
    {
        const double sixteenth = 0.0625, one = 1.0;
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
            "{%4, %4, %4, %4, %4, %4, %4, %4}, {%5, %5, %5, %5}, {%0, %1, %2, %3};"
            : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
            : "d"(sixteenth), "d"(one));
    }
    __device__ double value() const { return c[0] + c[1] + c[2] + c[3]; }
};

#endif

// Sixteen steps a round; the sum of a thread's chains goes to `out`, cycles of each block's first
// warp to `cycles`.
extern "C" __global__ void __launch_bounds__(THREADS)
    chains(double* out, long long rounds, long long* cycles)
{
    Chain chain[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; c++) chain[c].start(c);
    __syncthreads();
    const long long began = clock64();
    for (long long round = 0; round < rounds; round++) {
#pragma unroll
        for (int step = 0; step < 16; step++) {
#pragma unroll
            for (int c = 0; c < CHAINS; c++) chain[c].step();
        }
    }
    double sum = 0;
#pragma unroll
    for (int c = 0; c < CHAINS; c++) sum += chain[c].value();
    const long long ended = clock64();
    out[blockIdx.x * (long long)blockDim.x + threadIdx.x] = sum;
    if (threadIdx.x == 0) cycles[blockIdx.x] = ended - began;
}
