// Words that blocks of one launch send each other through device memory.
//
// The exchange needs neither a counter nor a fence: a word travels in a unit that
// carries a number beside it, and a reader waits for the number that it expects.
// Numbers grow from launch to launch, so nothing is reset in between.
//
// Every wait has an end: a word that does not come sets a flag that the host reads, and
// counts as zero, so that the kernels that follow stay within their memory.
//
// Compiled with -DREAL=float|double.

#pragma once

#include "warp.cuh"

#ifndef PATIENCE  // looks for a word, of half a microsecond each, before it counts as lost
#define PATIENCE (1u << 25)
#endif

template <int BYTES>
struct Exchange;

template <>
struct Exchange<8> {
    using Bits = unsigned long long;
    // Low word, number, high word, number: 8 bytes arrive together, as NCCL's
    // low-latency protocol relies on too.
    using Unit = uint4;
    static __device__ void put(Unit* unit, Bits bits, unsigned number)
    {
        asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(unit),
                     "r"(unsigned(bits)), "r"(number), "r"(unsigned(bits >> 32))
                     : "memory");
    }
    static __device__ bool get(const Unit* unit, unsigned number, Bits& bits)
    {
        uint4 v;
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(unit)
                     : "memory");
        bits = (Bits(v.z) << 32) | v.x;
        return v.y == number && v.w == number;
    }
};

template <>
struct Exchange<4> {
    using Bits = unsigned;
    using Unit = uint2;
    static __device__ void put(Unit* unit, Bits bits, unsigned number)
    {
        asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(unit), "r"(bits),
                     "r"(number)
                     : "memory");
    }
    static __device__ bool get(const Unit* unit, unsigned number, Bits& bits)
    {
        uint2 v;
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v.x), "=r"(v.y)
                     : "l"(unit)
                     : "memory");
        bits = v.x;
        return v.y == number;
    }
};

using Words = Exchange<sizeof(REAL)>;
using Unit = Words::Unit;

// Unit lane + 32 n goes to out[n]; all loads are in flight at once.
template <int N>
__device__ inline void receive(const Unit* units, int count, unsigned number, unsigned* lost,
                               Bits (&out)[N])
{
    const int lane = threadIdx.x % 32;
    bool arrived;
    unsigned looks = 0;
    do {
        arrived = true;
#pragma unroll
        for (int n = 0; n < N; n++) {
            out[n] = 0;
            if (lane + 32 * n < count) arrived &= Words::get(units + lane + 32 * n, number, out[n]);
        }
        looks++;
        // Once a word is lost, nobody waits long for others.
        if (looks % 1024 == 0 && *(volatile unsigned*)lost) break;
    } while (!arrived && looks < PATIENCE);
    if (!arrived) {
        *(volatile unsigned*)lost = 1;
#pragma unroll
        for (int n = 0; n < N; n++) out[n] = 0;
    }
    __syncwarp();
}
