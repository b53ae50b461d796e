// Matrix multiplication of small float32 blocks that are in the cache.

#pragma once

#include "vec.h"

namespace radixrt {

// c[m][N] (+)= a[m][K] . b[K][N] for N a multiple of LANES; row strides in floats.
template <int ROWS, int COLS>
inline void gemm_tile(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int depth, bool add) {
    vec acc[ROWS][COLS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) acc[i][j] = add ? load(c + i * ldc + j * LANES) : vec{};
    for (int k = 0; k < depth; k++) {
        vec right[COLS];
        for (int j = 0; j < COLS; j++) right[j] = load(b + k * ldb + j * LANES);
        for (int i = 0; i < ROWS; i++) {
            vec left = splat(a[i * lda + k]);
            for (int j = 0; j < COLS; j++) acc[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) store(c + i * ldc + j * LANES, acc[i][j]);
}

template <int COLS>
inline void gemm_rows(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int rows, int depth, bool add) {
    int i = 0;
    for (; i + 6 <= rows; i += 6) gemm_tile<6, COLS>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, depth, add);
    for (; i + 3 <= rows; i += 3) gemm_tile<3, COLS>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, depth, add);
    for (; i < rows; i++) gemm_tile<1, COLS>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, depth, add);
}

__attribute__((noinline)) inline void gemm(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int rows, int depth, int cols, bool add) {
    int j = 0;
    for (; j + 4 * LANES <= cols; j += 4 * LANES) gemm_rows<4>(a, lda, b + j, ldb, c + j, ldc, rows, depth, add);
    for (; j < cols; j += LANES) gemm_rows<1>(a, lda, b + j, ldb, c + j, ldc, rows, depth, add);
}

}  // namespace radixrt
