// What surrounds the leaves of a QR panel; after scalar.cu.  All but move_top take a
// block for a column.

// Exponents of a column within which squares do not overflow, and what underflows of them
// is far below rounding error.
constexpr int SAFE = sizeof(REAL) == 8 ? 400 : 20;

__device__ inline void scale(Scalar& x, int exponent)
{
    REAL* words = reinterpret_cast<REAL*>(&x);
#pragma unroll
    for (int n = 0; n < COMPONENTS; n++) words[n] = scalbn(words[n], exponent);
}

// The column's largest magnitude, on all threads; NaN does not count.
__device__ inline REAL largest(const Scalar* column, Index rows)
{
    __shared__ REAL of_warp[32];
    const REAL* words = reinterpret_cast<const REAL*>(column);
    REAL found = 0;
#pragma unroll 4
    for (Index i = threadIdx.x; i < rows * COMPONENTS; i += blockDim.x) {
        found = fmax(found, fabs(words[i]));
    }
    for (int step = 16; step; step /= 2) {
        found = fmax(found, __shfl_xor_sync(~0u, found, step));
    }
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = found;
    __syncthreads();
    for (int n = 0; n < blockDim.x / 32; n++) found = fmax(found, of_warp[n]);
    return found;
}

// Columns whose squares might over- or underflow are brought near 1, exactly: by powers
// of two, whose exponents stay behind for `unscale`.
extern "C" __global__ void scale_columns(Scalar* A, Index lda, Index rows, int* exponents)
{
    Scalar* column = A + blockIdx.x * lda;
    const REAL size = largest(column, rows);
    const int found = size == 0 || isinf(size) ? 0 : ilogb(size);
    const int exponent = abs(found) <= SAFE ? 0 : found;
    if (threadIdx.x == 0) exponents[blockIdx.x] = exponent;
    if (exponent == 0) return;
    for (Index i = threadIdx.x; i < rows; i += blockDim.x) scale(column[i], -exponent);
}

extern "C" __global__ void unscale(Scalar* R, Index ldr, const int* __restrict__ exponents)
{
    const int exponent = exponents[blockIdx.x];
    if (exponent == 0) return;
    Scalar* column = R + blockIdx.x * ldr;
    for (Index i = threadIdx.x; i <= blockIdx.x; i += blockDim.x) scale(column[i], exponent);
}

// R12 from the top of A2 (left x right), where V has zeros; zeros below the diagonals of
// R and T, given from the first column on.
extern "C" __global__ void move_top(Scalar* A2, Index lda, Scalar* R, Index ldr, Scalar* T,
                                    Index ldt, Index left, Index right)
{
    for (Index e = Index(blockIdx.x) * blockDim.x + threadIdx.x; e < left * right;
         e += Index(gridDim.x) * blockDim.x) {
        const Index i = e % left, j = e / left;
        R[i + (left + j) * ldr] = A2[i + j * lda];
        A2[i + j * lda] = make_scalar(0);
        R[left + j + i * ldr] = T[left + j + i * ldt] = make_scalar(0);
    }
}

extern "C" __global__ void copy_upper(const Scalar* __restrict__ R, Index ldr, Scalar* A, Index lda)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i <= c; i += blockDim.x) A[i + c * lda] = R[i + c * ldr];
}

// V from what copy_upper has packed: ones on the diagonal, zeros above it.
extern "C" __global__ void copy_reflectors(const Scalar* __restrict__ A, Index lda, Scalar* V,
                                           Index ldv, Index rows)
{
    const Index c = blockIdx.x;
    for (Index i = threadIdx.x; i < rows; i += blockDim.x) {
        V[i + c * ldv] = i > c ? A[i + c * lda] : make_scalar(i == c);
    }
}
