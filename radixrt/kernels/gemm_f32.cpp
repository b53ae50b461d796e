// Linear layers with float32 weights: x W^T + bias, for plain weights [n][k].
//
// A tile multiplies a few rows of x by COLS rows of the weight, with sums over the lanes of a vector, which are added up at
// the end. The order of the additions of a result depends neither on the tile nor on the other rows, so that a row has the
// same bits in every batch. Threads take neighbouring rows of the weight, which stay in the L2 cache while all rows of x
// pass over them.

#include <algorithm>

#include "replay.h"
#include "threads.h"
#include "vec.h"

namespace {

using namespace radixrt;

#ifdef __AVX512F__
constexpr int WIDTH = 16, TILE_ROWS = 6;  // 24 of the 32 registers are sums
#else
constexpr int WIDTH = 8, TILE_ROWS = 3;  // 12 of the 16 registers of AVX2 are sums
#endif
typedef float part __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

constexpr int COLS = 4;
constexpr int64_t WEIGHT_BYTES = 1 << 18;  // of rows of the weight in the L2 cache

inline part load_part(const float* p) { return *reinterpret_cast<const part*>(p); }

// The first step of adding up: eight lanes for each of two vectors.
inline vec first_sums(part a, part b) {
#ifdef __AVX512F__
    return merge<1>(a, b);
#else
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
}

// R rows of x by COLS rows of the weight, of which `cols` exist.
template <int R>
void tile(const float* x, const float* weight, const float* bias, float* out, int64_t k, int64_t stride, int64_t cols) {
    const float* w[COLS];
    for (int c = 0; c < COLS; c++) w[c] = weight + std::min<int64_t>(c, cols - 1) * k;
    part sums[R][COLS] = {};
    for (int64_t d = 0; d < k; d += WIDTH) {
        part values[R];
        for (int r = 0; r < R; r++) values[r] = load_part(x + r * k + d);
        for (int c = 0; c < COLS; c++) {
            if constexpr (R <= 2) __builtin_prefetch(w[c] + d + COLS * k);  // the next tile's
            const part of_column = load_part(w[c] + d);
            for (int r = 0; r < R; r++) sums[r][c] += values[r] * of_column;
        }
    }
    for (int first = 0; first < R; first += COLS) {  // the totals of four rows are those of sixteen vectors
        vec pairs[COLS];
        for (int i = 0; i < COLS; i++) {
            const part(&of_row)[COLS] = sums[std::min(first + i, R - 1)];
            pairs[i] = merge<2>(first_sums(of_row[0], of_row[1]), first_sums(of_row[2], of_row[3]));
        }
        float totals[LANES];
        store(totals, merge<4>(merge<3>(pairs[0], pairs[1]), merge<3>(pairs[2], pairs[3])));
        for (int r = first; r < std::min(first + COLS, R); r++) {
            float* of_row = totals + (r - first) * COLS;
            for (int c = 0; c < cols && bias; c++) of_row[c] += bias[c];
            if (cols == COLS) std::memcpy(out + r * stride, of_row, COLS * sizeof(float));
            else std::memcpy(out + r * stride, of_row, cols * sizeof(float));
        }
    }
}

void tile(int64_t rows, const float* x, const float* weight, const float* bias, float* out, int64_t k, int64_t stride,
          int64_t cols) {
    switch (rows) {
        case 1: return tile<1>(x, weight, bias, out, k, stride, cols);
        case 2: return tile<2>(x, weight, bias, out, k, stride, cols);
#ifdef __AVX512F__
        case 3: return tile<3>(x, weight, bias, out, k, stride, cols);
        case 4: return tile<4>(x, weight, bias, out, k, stride, cols);
        case 5: return tile<5>(x, weight, bias, out, k, stride, cols);
#endif
        default: return tile<TILE_ROWS>(x, weight, bias, out, k, stride, cols);
    }
}

}  // namespace

extern "C" {
// x [rows][k], weight [n][k], bias [n] or null, out [rows][n]; k is a multiple of LANES.
void radixrt_gemm_f32(const float* x, const float* weight, const float* bias, float* out, int64_t rows, int64_t n,
                      int64_t k) {
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, most = WEIGHT_BYTES / (4 * COLS * k);
    parallel_ranges((n + COLS - 1) / COLS, most, [&](int64_t begin, int64_t end) {
        for (int64_t t = 0; t < tiles; t++) {  // of equal heights, as far as possible
            const int64_t first = t * rows / tiles, height = (t + 1) * rows / tiles - first;
            for (int64_t group = begin; group < end; group++) {
                const int64_t column = group * COLS;
                tile(height, x + first * k, weight + column * k, bias ? bias + column : nullptr,
                     out + first * n + column, k, n, std::min<int64_t>(COLS, n - column));
            }
        }
    });
}
}

RADIXRT_REPLAY(radixrt_gemm_f32)
