// The condition of a small matrix, estimated by a block from its factors.

#pragma once

#include "rows.cuh"

// Entry i of a vector v of no particular direction: A^-1 v tells the size of A^-1.  Signs and
// sizes, from 1 to 2, are those of a hash, so that simple combinations of entries are not zero.
__device__ inline Scalar probe(int i)
{
    unsigned hash = (unsigned(i) + 1) * 2654435761u;
    hash = (hash ^ hash >> 15) * 2246822519u;
    hash ^= hash >> 13;
    const REAL size = 1 + REAL(hash >> 8) / (1 << 24);
    return make_scalar(hash & 1 ? -size : size);
}

__device__ inline Scalar phase(Scalar x)
{
    const REAL size = REAL(modulus(x));
    return size == 0 ? make_scalar(1) : scale(x, 1 / size);
}

// What a block finds of A^-1.
struct Inverse {
    const Scalar* factors;
    int n;
    Index kind;
    Group<1>& group;
    Candidates& candidates;
    double* of_warp;

    // x <- A^-1 x, or A^-H x; returns its 1-norm, to all threads.
    __device__ __noinline__ double apply(Scalar& x, bool adjoint) const
    {
        Scalar row[1] = {x};
        solve_with(factors, n, adjoint && kind == PLAIN ? ADJOINT : kind, row, group);
        x = row[0];
        return block_sum(modulus(x), of_warp);
    }

    // Where x is largest, and how large.
    __device__ int find_largest(Scalar x, double& largest) const
    {
        const int row = threadIdx.x;
        const Bits key = row < n ? magnitude_key(REAL(modulus(x))) : 0;
        const int where = lowest_of_largest(key, row, candidates);
        if (row == where) of_warp[0] = modulus(x);
        __syncthreads();
        largest = of_warp[0];
        __syncthreads();
        return where;
    }
};

// LAPACK's estimate of ||A^-1||_1 (Higham, ACM TOMS 14, 1988), begun with x = A^-1 v, of which
// `size` is the 1-norm, and with where A^-H phase(x) is largest.
__device__ inline double inverse_norm(const Inverse& inverse, double size, int where)
{
    const int row = threadIdx.x, n = inverse.n;
    for (int step = 2; step <= 5; step++) {
        Scalar x = make_scalar(row == where);
        const double next = inverse.apply(x, false);
        if (!(next > size)) break;
        size = next;
        x = row < n ? phase(x) : make_scalar(0);
        inverse.apply(x, true);
        const int last = where;
        double largest;
        where = inverse.find_largest(x, largest);
        if (where == last) break;
    }
    const REAL other = 1 + REAL(row) / max(n - 1, 1);
    Scalar x = make_scalar(row >= n ? REAL(0) : row % 2 ? -other : other);
    return larger(size, inverse.apply(x, false) / (1.5 * n));
}

// What is certain: a reciprocal condition number that is at least `once` by one solve, or `twice`
// by one with A and one with A^H, is not estimated further.
struct Certain {
    double once, twice;
};

// An estimate of a reciprocal condition number from x = A^-1 v, v being of probes, and from the
// 1-norm of A, which is infinite where A is not factored.
__device__ inline double reciprocal_condition(const Inverse& inverse, Scalar x, double anorm,
                                              Certain certain)
{
    if (!isfinite(anorm)) return 0;
    const int row = threadIdx.x, n = inverse.n;
    const double unit = block_sum(row < n ? modulus(probe(row)) : 0, inverse.of_warp);
    double size = block_sum(modulus(x), inverse.of_warp) / unit, largest;
    if (1 / (anorm * size) >= certain.once) return 1 / (anorm * size);
    x = row < n ? phase(x) : make_scalar(0);
    inverse.apply(x, true);
    const int where = inverse.find_largest(x, largest);
    if (!(1 / (anorm * larger(size, largest)) >= certain.twice)) {
        size = inverse_norm(inverse, size, where);
    }
    return 1 / (anorm * larger(size, largest));
}
