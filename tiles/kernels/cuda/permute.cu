// Kernels on pivots alone.

#include "index.cuh"
#include "pivots.cuh"

// links: self of each swap, and then 2 (same + 1) + repeats.
extern "C" __global__ void find_links(const int* __restrict__ ipiv, Index w, int* links)
{
    __shared__ int p[1024];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int mine = i < w ? ipiv[i] : 0;
    Link link = {-1, -1, false};
    for (int first = 0; first < w; first += 1024) {
        const int count = min(1024, int(w) - first);
        __syncthreads();
        for (int n = threadIdx.x; n < count; n += blockDim.x) p[n] = ipiv[first + n];
        __syncthreads();
        scan_pivots(link, p, first, count, i, mine);
    }
    if (i >= w) return;
    links[i] = link.self;
    links[w + i] = 2 * (link.same + 1) + link.repeats;
}

extern "C" __global__ void netperm(const int* __restrict__ ipiv, Index w,
                                   const int* __restrict__ links, int* net, Index ldn)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w) return;
    const int packed = links[w + i];
    const Moves moves = find_moves(links, packed / 2 - 1, packed % 2, int(w), i, ipiv[i]);
    for (int n = 0; n < 2; n++) {
        int* entry = net + (i + n * w) * ldn;
        entry[0] = moves.to[n];
        entry[1] = moves.from[n];
    }
}

extern "C" __global__ void identity_permutation(int* perm, Index rows)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) perm[i] = i;
}

extern "C" __global__ void scatter_net(const int* __restrict__ net, Index ldn, Index entries,
                                       int* perm)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < entries && net[i * ldn] >= 0) perm[net[i * ldn]] = net[i * ldn + 1];
}

// perm = first, with its rows from `top` on taken in the order `after`.
extern "C" __global__ void gather_permutation(const int* __restrict__ first,
                                              const int* __restrict__ after, Index top, Index rows,
                                              int* perm)
{
    const Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < rows) perm[i] = i < top ? first[i] : first[top + after[i - top]];
}

// The row order p with A[p] = L U, from w interchanges in shared memory, by one block.
extern "C" __global__ void row_order(const int* __restrict__ ipiv, Index w, int* order)
{
    extern __shared__ int shared[];
    int *const rows = shared, *const swaps = shared + w;
    for (int i = threadIdx.x; i < w; i += blockDim.x) {
        rows[i] = i;
        swaps[i] = ipiv[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < w; i++) {
            const int p = swaps[i], row = rows[i];
            rows[i] = rows[p];
            rows[p] = row;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < w; i += blockDim.x) order[i] = rows[i];
}
