// Pointer chases: each load's address is what the load before has returned, so that nothing
// overlaps and the time of a step is the latency.
//
// Compiled with -DCACHE=ca|cg: loads that look into the first cache, or only into the second.

// Cycles of a multiprocessor, and nanoseconds of the device.
struct Clocks {
    long long cycles, nanoseconds;
};

__device__ inline Clocks now()
{
    Clocks clocks;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clocks.cycles)::"memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(clocks.nanoseconds)::"memory");
    return clocks;
}

__device__ inline void report(Clocks began, long long* clocks)
{
    const Clocks ended = now();
    clocks[0] = ended.cycles - began.cycles;
    clocks[1] = ended.nanoseconds - began.nanoseconds;
}

#define QUOTED(x) #x
#define LOAD(cache) "ld.global." QUOTED(cache) ".u64 %0, [%1];"

__device__ inline long long load(const long long* from)
{
    long long value;
    asm volatile(LOAD(CACHE) : "=l"(value) : "l"(from) : "memory");
    return value;
}

// One thread follows `next` from place 0 on: `first` steps to fill caches, then `steps` that are
// timed.  Where it ends goes to *end.
extern "C" __global__ void chase_global(const long long* next, long long first, long long steps,
                                        long long* end, long long* clocks)
{
    long long at = 0;
    for (long long i = 0; i < first; i++) at = load(next + at);
    const Clocks began = now();
#pragma unroll 8
    for (long long i = 0; i < steps; i++) at = load(next + at);
    *end = at;
    report(began, clocks);
}

#define PLACES 4096

// The same in shared memory, of which PLACES words are copied there.
extern "C" __global__ void chase_shared(const long long* next, long long first, long long steps,
                                        long long* end, long long* clocks)
{
    __shared__ unsigned copy[PLACES];
    for (int i = 0; i < PLACES; i++) copy[i] = unsigned(next[i]);
    unsigned at = 0;
    for (long long i = 0; i < first; i++) at = copy[at];
    const Clocks began = now();
#pragma unroll 8
    for (long long i = 0; i < steps; i++) at = copy[at];
    *end = at;
    report(began, clocks);
}

// The same in a thread's local memory.
extern "C" __global__ void chase_local(const long long* next, long long first, long long steps,
                                       long long* end, long long* clocks)
{
    unsigned copy[PLACES];
    for (int i = 0; i < PLACES; i++) copy[i] = unsigned(next[i]);
    unsigned at = 0;
    for (long long i = 0; i < first; i++) at = copy[at];
    const Clocks began = now();
#pragma unroll 8
    for (long long i = 0; i < steps; i++) at = copy[at];
    *end = at;
    report(began, clocks);
}
