// Pointer chases by one thread: each load's address is what the load before has returned, so that
// nothing overlaps and the time of a step is the latency.
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

// Follows pointers from place 0 on: `first` steps to fill caches, then `chases` times `steps` that
// are timed.  All are of one launch, since launches begin with an empty first cache.  Where it ends
// goes to *end.
template <class Pointers>
__device__ inline void follow(Pointers next, long long first, long long steps, long long chases,
                              long long* end, long long* clocks)
{
    decltype(next(0)) at = 0;
    for (long long i = 0; i < first; i++) at = next(at);
    for (long long chase = 0; chase < chases; chase++) {
        const Clocks began = now();
#pragma unroll 8
        for (long long i = 0; i < steps; i++) at = next(at);
        *end = at;  // waits for the last load
        report(began, clocks + 2 * chase);
    }
}

extern "C" __global__ void chase_global(const long long* next, long long first, long long steps,
                                        long long chases, long long* end, long long* clocks)
{
    follow([&](long long at) { return load(next + at); }, first, steps, chases, end, clocks);
}

#define PLACES 4096

// Copies a ring of pointers, of at most PLACES words.
__device__ inline void copy_ring(const long long* next, unsigned* copy)
{
    unsigned at = 0;
    do {
        copy[at] = unsigned(next[at]);
        at = copy[at];
    } while (at != 0);
}

extern "C" __global__ void chase_shared(const long long* next, long long first, long long steps,
                                        long long chases, long long* end, long long* clocks)
{
    __shared__ unsigned copy[PLACES];
    copy_ring(next, copy);
    follow([&](unsigned at) { return copy[at]; }, first, steps, chases, end, clocks);
}

// In the thread's local memory.
extern "C" __global__ void chase_local(const long long* next, long long first, long long steps,
                                       long long chases, long long* end, long long* clocks)
{
    unsigned copy[PLACES];
    copy_ring(next, copy);
    follow([&](unsigned at) { return copy[at]; }, first, steps, chases, end, clocks);
}
