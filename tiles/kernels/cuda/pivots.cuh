// Swaps as permutations.
//
// ipiv lists swaps i <-> p[i], p[i] >= i, one after another.  What row x holds
// before swap i is found backwards: the last earlier swap q with p[q] = x put
// there what row q held before swap q; without such a swap it is row x itself.
// Each row is traced on its own, so that all can be traced at once.

#pragma once

struct Link {
    int self;      // last q < i with p[q] = i, or -1: whence row i was filled
    int same;      // last q < i with p[q] = p[i], or -1
    bool repeats;  // some q > i has p[q] = p[i]
};

// Add to `link` of swap i what the pivots first .. first + count say; `p` is in
// shared memory, and begins with pivot `first`.
__device__ inline void scan_pivots(Link& link, const int* p, int first, int count, int i, int mine)
{
#pragma unroll 8
    for (int n = 0; n < count; n++) {
        const int q = first + n, other = p[n];
        if (q < i && other == i) link.self = q;
        if (q < i && other == mine) link.same = q;
        if (q > i && other == mine) link.repeats = true;
    }
}

// The old row that stands in row i before swap i.
__device__ inline int trace(const int* self, int i)
{
    while (self[i] >= 0) i = self[i];
    return i;
}

// Swap i as moves: row to[n] takes the old row from[n]; to[n] = -1 where nothing
// moves or another swap says it.
struct Moves {
    int to[2], from[2];
};

__device__ inline Moves find_moves(const int* self, int same, bool repeats, int w, int i, int p)
{
    Moves moves;
    moves.from[0] = same < 0 ? p : trace(self, same);
    moves.from[1] = trace(self, i);
    moves.to[0] = moves.from[0] == i ? -1 : i;
    moves.to[1] = p < w || repeats ? -1 : p;
    return moves;
}
