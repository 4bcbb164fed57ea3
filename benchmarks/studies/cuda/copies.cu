// Copies by words of several lengths, with strides, and of rows in another order.
//
// Compiled with -DWORD=float|float2|float4, of 4, 8 and 16 bytes.

// Where a thread begins, and how far it goes from there, along either dimension of the grid.
#define ALONG_X(i, n)                                                           \
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; \
         i += gridDim.x * (long long)blockDim.x)
#define ALONG_Y(j, n) for (long long j = blockIdx.y; j < n; j += gridDim.y)

// Copies n words.
extern "C" __global__ void copy(const WORD* from, WORD* to, long long n)
{
    ALONG_X(i, n) to[i] = from[i];
}

// Turns a matrix of n rows of `stride` words: words that threads read side by side are that far
// apart, and those that they write are neighbours.
extern "C" __global__ void copy_strided(const WORD* from, WORD* to, long long n, long long stride)
{
    ALONG_Y(j, stride) ALONG_X(i, n) to[i + j * n] = from[i * stride + j];
}

// Copies a matrix of n columns of m words with its rows in the order `order`: threads side by side
// copy words of one column.
extern "C" __global__ void rows_of_columns(const WORD* from, WORD* to, const long long* order,
                                           long long m, long long n)
{
    ALONG_Y(j, n) ALONG_X(i, m) to[i + j * m] = from[order[i] + j * m];
}

// The same of a matrix of m rows of n words: threads side by side copy words of one row.
extern "C" __global__ void rows_of_rows(const WORD* from, WORD* to, const long long* order,
                                        long long m, long long n)
{
    ALONG_Y(i, m) ALONG_X(j, n) to[i * n + j] = from[order[i] * n + j];
}
