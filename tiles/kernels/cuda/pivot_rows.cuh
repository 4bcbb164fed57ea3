// What the blocks of an LU leaf tell each other for each column: the pivot's row, and row j.
//
// Compiled with -DIB (most columns) and -DTHREADS.  Each block publishes its largest magnitude
// and the row that has it, and one of them row j.  Two buffers alternate: a block publishes
// column j + 2 only after every block has published column j + 1, that is, after all have
// read column j.

#pragma once

#include "exchange.cuh"
#include "scalar.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int WORDS = IB * COMPONENTS;  // of a row
constexpr int ROW_UNITS = WORDS + 1;    // a row and its index
constexpr int ROW_LOADS = (ROW_UNITS + 31) / 32;
static_assert(WARPS >= 2 && WARPS <= 32, "launch shape");

// The warp of the thread that kept the row in shared memory sends it.
__device__ inline void publish_row(Unit* units, const Scalar* row, int index, unsigned number)
{
    __syncwarp();
    for (int word = threadIdx.x % 32; word < WORDS; word += 32) {
        const REAL value = reinterpret_cast<const REAL*>(row)[word];
        Words::put(units + word, bits_of(value), number);
    }
    if (threadIdx.x % 32 == 0) Words::put(units + WORDS, index, number);
}

// A warp waits for a row and lays it in shared memory; returns the row's index.
__device__ inline int receive_row(const Unit* units, unsigned number, unsigned* lost, Scalar* row)
{
    const int lane = threadIdx.x % 32;
    Bits words[ROW_LOADS];
    receive(units, ROW_UNITS, number, lost, words);
#pragma unroll
    for (int n = 0; n < ROW_LOADS; n++) {
        const int word = lane + 32 * n;
        if (word < WORDS) reinterpret_cast<REAL*>(row)[word] = real_of(words[n]);
    }
    return __shfl_sync(~0u, int(words[WORDS / 32]), WORDS % 32);
}

// A warp's largest key; `index` becomes the smallest one of the lanes that have it.
__device__ inline Bits warp_winner(Bits key, unsigned& index)
{
    const Bits best = warp_max(key);
    index = ~warp_max(key == best ? ~index : 0u);  // the largest complement is the smallest
    return best;
}

// The largest of the blocks' keys, as the first block that has it.
__device__ inline int winning_block(const Unit* keys, unsigned number, unsigned* lost)
{
    Bits mine = 0;
    unsigned block = gridDim.x - 1;
    for (int first = 0; first < gridDim.x; first += 128) {
        Bits key[4];
        receive(keys + first, gridDim.x - first, number, lost, key);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (key[n] > mine) {
                mine = key[n];
                block = first + threadIdx.x % 32 + 32 * n;
            }
        }
    }
    warp_winner(mine, block);
    return block;
}

struct Shared {
    Bits warp_key[WARPS];
    int warp_row[WARPS];
    __align__(16) Scalar pivot_row[2][IB];  // of the panel, of even and odd columns
    __align__(16) Scalar top_row[IB];
    __align__(16) Scalar my_pivot_row[IB], my_top_row[IB];  // of this block
    int pivot;
};

// The warps' largest keys and the first rows that have them, the rows of a warp's lanes being the
// same or following each other; ends with all threads.
__device__ inline void find_warp_winners(Shared& s, Bits key, int row)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Bits best = warp_max(key);
    const int first = __ffs(__ballot_sync(~0u, key == best)) - 1;
    if (lane == 0) {
        s.warp_key[warp] = best;
        s.warp_row[warp] = row + first;
    }
    __syncthreads();
}

// The block's largest key and the first row that has it.
__device__ inline Bits block_winner(const Shared& s, int& winner)
{
    const int lane = threadIdx.x % 32;
    unsigned row = lane < WARPS ? s.warp_row[lane] : ~0u;
    const Bits best = warp_winner(lane < WARPS ? s.warp_key[lane] : 0, row);
    winner = row;
    return best;
}

// From each block's candidate to the panel's pivot row, and row j to all blocks.
// The warp that has such a row publishes it; warps 0 and 1 wait for what is published.
__device__ inline void exchange_rows(Shared& s, Unit* keys, int winner, bool has_winner, int j,
                                     bool has_top, unsigned number, unsigned* lost)
{
    const int warp = threadIdx.x / 32, blocks = gridDim.x;
    Unit *rows = keys + blocks, *top = rows + blocks * ROW_UNITS;
    if (has_winner) publish_row(rows + blockIdx.x * ROW_UNITS, s.my_pivot_row, winner, number);
    if (has_top) publish_row(top, s.my_top_row, j, number);
    if (warp == 0) {
        const int block = winning_block(keys, number, lost);
        const Unit* row_units = rows + block * ROW_UNITS;
        const int pivot = receive_row(row_units, number, lost, s.pivot_row[j & 1]);
        if (threadIdx.x == 0) s.pivot = max(pivot, j);  // a lost row has no index
    } else if (warp == 1) {
        receive_row(top, number, lost, s.top_row);
    }
}
