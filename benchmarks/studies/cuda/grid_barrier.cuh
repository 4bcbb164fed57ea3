// A barrier between all blocks of a cooperative launch, as CUDA's cooperative groups have it.
//
// The counter's highest bit turns over once all blocks have added their part, so that nothing is
// reset between barriers.

#pragma once

__device__ inline void wait_for_grid(unsigned* counter)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned blocks = gridDim.x;
        const unsigned part = blockIdx.x == 0 ? 0x80000000u - (blocks - 1) : 1;
        __threadfence();
        const unsigned before = atomicAdd(counter, part);
        while (((before ^ *(volatile unsigned*)counter) & 0x80000000u) == 0) {
        }
        __threadfence();
    }
    __syncthreads();
}
