// Tiles of a GEMM with bfloat16 weights and float32 results: some rows of x, rounded to bfloat16, and one panel.
//
// A weight is packed in panels of COLS output features: [N / COLS][K / 2][COLS][2], so that a vector instruction reads a
// pair of inputs for sixteen features. In a gated weight, whose first half is that of gate and whose second that of up, a
// panel has sixteen features of each (panel_results.h).

#pragma once

#include <cstdint>

#include "panel_results.h"
#include "tile_registers.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>

#include <algorithm>
#include <vector>

namespace radixrt {

constexpr int COLS = 2 * LANES;
constexpr int DEPTH = 32;        // K is a multiple of it
constexpr int STREAMS = 4;       // neighbouring panels that a few rows pass over together
constexpr int STREAM_ROWS = 3;   // rows that do: their products wait for memory, and 24 of the 32 registers are sums
constexpr int64_t AHEAD = 2048;  // bytes of a panel
constexpr int TILE_ROWS = 12;    // with 2 vectors of columns: 24 of the 32 registers are sums
constexpr int64_t BLOCK_ROWS = 256;  // over which a panel stays in the L2 cache

// R rows and P neighbouring panels. A thread that reads several sequences of addresses gets 1.2 to 1.4 times the bytes a
// second of one sequence: the processor looks ahead in each, and not beyond a page. Lines are asked for in the L2 cache,
// which can wait for more of them than the L1 cache: on AMD (Zen 4), asking for them in the L1 cache costs a sixth.
template <int R, int P>
inline void tile(const uint32_t* x, int64_t pairs, const __m512bh* panel, const Results& results) {
    __m512 sums[R][P][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) sums[r][p][0] = sums[r][p][1] = _mm512_setzero_ps();
    const auto add = [&](int64_t begin, int64_t end, int64_t ahead) {
        for (int64_t k = begin; k < end; k++) {
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                const __m512bh* weights = panel + 2 * (p * pairs + k);
                if constexpr (R <= STREAM_ROWS) {
                    _mm_prefetch(reinterpret_cast<const char*>(weights) + ahead, _MM_HINT_T1);
                    _mm_prefetch(reinterpret_cast<const char*>(weights + 1) + ahead, _MM_HINT_T1);
                }
                const __m512bh low = weights[0], high = weights[1];
#pragma GCC unroll 12
                for (int r = 0; r < R; r++) {
                    const __m512bh value = (__m512bh)_mm512_set1_epi32(x[r * pairs + k]);
                    sums[r][p][0] = _mm512_dpbf16_ps(sums[r][p][0], value, low);
                    sums[r][p][1] = _mm512_dpbf16_ps(sums[r][p][1], value, high);
                }
            }
        }
    };
    // Behind the end of a panel lies the next one of this tile: the next tile begins P - 1 panels further.
    constexpr int64_t PAIR_BYTES = 4 * COLS;
    const int64_t last = R <= STREAM_ROWS ? std::min(pairs, AHEAD / PAIR_BYTES) : 0;
    add(0, pairs - last, AHEAD);
    if constexpr (R <= STREAM_ROWS) add(pairs - last, pairs, AHEAD + (P - 1) * pairs * PAIR_BYTES);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) results.store(r, p, (vec)sums[r][p][0], (vec)sums[r][p][1]);
}

// R rows and `count` neighbouring panels.
template <int R>
inline void multiply_streams(const uint16_t* x, int64_t k, const uint16_t* panels, int64_t count, const Results& results) {
    const uint32_t* values = reinterpret_cast<const uint32_t*>(x);
    for (int64_t first = 0; first < count; first += STREAMS) {
        const __m512bh* weights = reinterpret_cast<const __m512bh*>(panels + first * COLS * k);
        const Results to = results.at(0, first);
        switch (std::min<int64_t>(STREAMS, count - first)) {
            case 1: tile<R, 1>(values, k / 2, weights, to); break;
            case 2: tile<R, 2>(values, k / 2, weights, to); break;
            case 3: tile<R, 3>(values, k / 2, weights, to); break;
            default: tile<R, STREAMS>(values, k / 2, weights, to);
        }
    }
}

inline void multiply_panel(const uint16_t* x, int64_t rows, int64_t k, const uint16_t* panel, const Results& results) {
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t t = 0; t < tiles; t++) {  // tiles of equal heights: a single row would use a twelfth of the registers
        const int64_t first = t * rows / tiles, height = (t + 1) * rows / tiles - first;
        const uint32_t* values = reinterpret_cast<const uint32_t*>(x + first * k);
        const __m512bh* weights = reinterpret_cast<const __m512bh*>(panel);
        switch (height) {
#define RADIXRT_TILE(R) case R: tile<R, 1>(values, k / 2, weights, results.at(first, 0)); break;
            RADIXRT_TILE(1) RADIXRT_TILE(2) RADIXRT_TILE(3) RADIXRT_TILE(4) RADIXRT_TILE(5) RADIXRT_TILE(6)
            RADIXRT_TILE(7) RADIXRT_TILE(8) RADIXRT_TILE(9) RADIXRT_TILE(10) RADIXRT_TILE(11) RADIXRT_TILE(12)
#undef RADIXRT_TILE
        }
    }
}

#ifdef __AMX_BF16__

constexpr int AMX_MIN_ROWS = 2;

// 16 * TILES rows and one panel; `height` of the rows are wanted.
template <int TILES>
inline void tile_rows(const uint16_t* x, int64_t height, int64_t k, const uint16_t* panel, const Results& results) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (TILES == 2) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t d = 0; d < k; d += DEPTH) {
        _tile_loadd(4, x + d, k * 2);
        _tile_loadd(6, panel + d * COLS, COLS * 4);
        _tile_loadd(7, panel + d * COLS + 2 * LANES, COLS * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (TILES == 2) {
            _tile_loadd(5, x + 16 * k + d, k * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    const bool direct = height == 16 * TILES && !results.gated;
    float sums[16 * TILES * COLS];
    float* target = direct ? results.out : sums;
    const int64_t row = direct ? results.stride : COLS;
    _tile_stored(0, target, 4 * row);
    _tile_stored(1, target + LANES, 4 * row);
    if constexpr (TILES == 2) {
        _tile_stored(2, target + 16 * row, 4 * row);
        _tile_stored(3, target + 16 * row + LANES, 4 * row);
    }
    for (int64_t r = 0; r < height && !direct; r++)
        results.store(r, 0, load(sums + r * COLS), load(sums + r * COLS + LANES));
}

// As multiply_panel; x has room for rows up to the next multiple of 16.
inline void multiply_panel_tiles(const uint16_t* x, int64_t rows, int64_t k, const uint16_t* panel, const Results& results) {
    for (int64_t first = 0; first < rows; first += 32) {
        const int64_t height = std::min<int64_t>(32, rows - first);
        const auto run = height > 16 ? tile_rows<2> : tile_rows<1>;
        run(x + first * k, height, k, panel, results.at(first, 0));
    }
}

#endif

// Multiplies panels in a thread, with tile registers where the processor has them.
class Tiles {
  public:
    // One panel, by the tile registers where that is faster; x has room for rows up to a multiple of 32.
    void multiply(const uint16_t* x, int64_t rows, int64_t k, const uint16_t* panel, const Results& results) const {
#ifdef __AMX_BF16__
        if (registers_.loaded() && rows >= AMX_MIN_ROWS) return multiply_panel_tiles(x, rows, k, panel, results);
#endif
        multiply_panel(x, rows, k, panel, results);
    }

    // As above, for `count` neighbouring panels.
    void multiply(const uint16_t* x, int64_t rows, int64_t k, const uint16_t* panels, int64_t count,
                  const Results& results) const {
        switch (rows) {
            static_assert(STREAM_ROWS == 3);
            case 1: return multiply_streams<1>(x, k, panels, count, results);
            case 2: return multiply_streams<2>(x, k, panels, count, results);
            case 3: return multiply_streams<3>(x, k, panels, count, results);
        }
        for (int64_t i = 0; i < count; i++) multiply(x, rows, k, panels + i * COLS * k, results.at(0, i));
    }

  private:
    TileRegisters registers_;
};

inline void round_to_bfloat16(const float* from, uint16_t* to, int64_t count) {  // a multiple of 16
    for (int64_t i = 0; i < count; i += 16)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i)));
}

}  // namespace radixrt

#endif
