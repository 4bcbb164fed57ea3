// Barriers between the blocks of one launch, one after the other.
//
// Compiled with -DKIND=
//   0  a counter, which all blocks add to and look at, as in CUDA's cooperative groups
//   1  flags: each block raises its own, the first block waits for all of them and answers
//   2  words with numbers, as the library's panels exchange them: all blocks read all words
//   3  the barrier of a cluster, -DCLUSTER=blocks
// and, for KIND=2, the library's -DREAL=double.
//
// With -DCHECKED=1, every block writes the number of the round before a barrier, and counts what
// it finds of the others behind it that is not that number.

#ifndef CHECKED
#define CHECKED 0
#endif

#if KIND == 0

#include "grid_barrier.cuh"

__device__ inline void wait_for_all(unsigned* memory, unsigned) { wait_for_grid(memory); }

#elif KIND == 1

// Word b + 1 is the flag of block b, and word 0 the answer.
__device__ inline void wait_for_all(unsigned* memory, unsigned round)
{
    volatile unsigned* flags = memory;
    __syncthreads();
    if (blockIdx.x == 0) {
        for (unsigned b = threadIdx.x + 1; b < gridDim.x; b += blockDim.x)
            while (flags[b + 1] != round) {
            }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) flags[0] = round;
    } else if (threadIdx.x == 0) {
        __threadfence();
        flags[blockIdx.x + 1] = round;
        while (flags[0] != round) {
        }
        __threadfence();
    }
    __syncthreads();
}

#elif KIND == 2

#include "exchange.cuh"

// Rounds take turns with two places for each word: a block that is ahead must not replace one that
// another still waits for.
__device__ inline void wait_for_all(unsigned* memory, unsigned round)
{
    const int blocks = gridDim.x;
    Unit* units = reinterpret_cast<Unit*>(memory + 4) + (round % 2) * blocks;
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            __threadfence();
            Words::put(units + blockIdx.x, Bits(blockIdx.x), round);
        }
        for (int first = 0; first < blocks; first += 128) {
            Bits out[4];
            receive<4>(units + first, min(blocks - first, 128), round, memory, out);
        }
        __threadfence();
    }
    __syncthreads();
}

#else

__device__ inline void wait_for_all(unsigned*, unsigned)
{
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

#endif

// `memory` is zero before the first launch, and `first`, the number of its first round, is larger
// than all numbers of earlier launches.  `marks` has two words for each block.
extern "C" __global__ void
#if KIND == 3
__cluster_dims__(CLUSTER, 1, 1)
#endif
    barriers(unsigned* memory, long long first, long long rounds, volatile unsigned* marks,
             unsigned* wrong)
{
    for (long long i = 0; i < rounds; i++) {
        const unsigned round = unsigned(first + i);
#if CHECKED
        volatile unsigned* own = marks + (round % 2) * gridDim.x;
        if (threadIdx.x == 0) own[blockIdx.x] = round;
#endif
        wait_for_all(memory, round);
#if CHECKED
        for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x)
            if (own[b] != round) atomicAdd(wrong, 1);
#endif
    }
}
