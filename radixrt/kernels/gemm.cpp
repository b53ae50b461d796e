// Linear layers with bfloat16 weights and float32 results: x W^T, with x rounded to bfloat16 and sums in float32.
//
// A weight is packed in panels of COLS output features: [N / COLS][K / 2][COLS][2], so that a vector instruction reads a
// pair of inputs for sixteen features. Threads divide the panels. A panel stays in the L2 cache while all rows of a block
// pass over it.
//
// In a gated weight, whose first half is that of gate and whose second that of up, a panel has sixteen features of each,
// and the result is silu(gate) * up: what lies between is never written.

#include <cstdint>

#include "vec.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>

#include <algorithm>
#include <vector>

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

using namespace radixrt;

constexpr int COLS = 2 * LANES;
constexpr int DEPTH = 32;        // K is a multiple of it
constexpr int TILE_ROWS = 12;    // with 2 vectors of columns: 24 of the 32 registers are sums
constexpr int64_t BLOCK_ROWS = 256;

inline vec silu_and_mul(vec gate, vec up) {
    const vec e = exp_nonpositive(gate > 0.0f ? -gate : gate);
    return gate * (gate > 0.0f ? splat(1.0f) : e) / (1.0f + e) * up;
}

// R rows and one panel.
template <int R, bool GATED>
inline void tile(const uint32_t* x, int64_t pairs, const __m512bh* panel, float* out, int64_t stride) {
    __m512 sums[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (int64_t k = 0; k < pairs; k++) {
        const __m512bh low = panel[2 * k], high = panel[2 * k + 1];
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const __m512bh value = (__m512bh)_mm512_set1_epi32(x[r * pairs + k]);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], value, low);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], value, high);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
        if constexpr (GATED) {
            store(out + r * stride, silu_and_mul((vec)sums[r][0], (vec)sums[r][1]));
        } else {
            store(out + r * stride, (vec)sums[r][0]);
            store(out + r * stride + LANES, (vec)sums[r][1]);
        }
    }
}

template <bool GATED>
void multiply_panel(const uint16_t* x, int64_t rows, int64_t k, const uint16_t* panel, float* out, int64_t stride) {
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t t = 0; t < tiles; t++) {  // tiles of equal heights: a single row would use a twelfth of the registers
        const int64_t first = t * rows / tiles, height = (t + 1) * rows / tiles - first;
        const uint32_t* values = reinterpret_cast<const uint32_t*>(x + first * k);
        const __m512bh* weights = reinterpret_cast<const __m512bh*>(panel);
        switch (height) {
#define RADIXRT_TILE(R) case R: tile<R, GATED>(values, k / 2, weights, out + first * stride, stride); break;
            RADIXRT_TILE(1) RADIXRT_TILE(2) RADIXRT_TILE(3) RADIXRT_TILE(4) RADIXRT_TILE(5) RADIXRT_TILE(6)
            RADIXRT_TILE(7) RADIXRT_TILE(8) RADIXRT_TILE(9) RADIXRT_TILE(10) RADIXRT_TILE(11) RADIXRT_TILE(12)
#undef RADIXRT_TILE
        }
    }
}

#ifdef __AMX_BF16__

constexpr int AMX_MIN_ROWS = 5;  // with fewer rows most of a tile is empty

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Linux lets a process use tile registers once it has asked.
bool has_tiles() {
    static const bool granted = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0;
    return granted;
}

// 16 * TILES rows and one panel; `height` of the rows are wanted.
template <int TILES, bool GATED>
inline void tile_rows(const uint16_t* x, int64_t height, int64_t k, const uint16_t* panel, float* out, int64_t stride) {
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
    const bool direct = height == 16 * TILES && !GATED;
    float sums[16 * TILES * COLS];
    float* target = direct ? out : sums;
    const int64_t row = direct ? stride : COLS;
    _tile_stored(0, target, 4 * row);
    _tile_stored(1, target + LANES, 4 * row);
    if constexpr (TILES == 2) {
        _tile_stored(2, target + 16 * row, 4 * row);
        _tile_stored(3, target + 16 * row + LANES, 4 * row);
    }
    for (int64_t r = 0; r < height && !direct; r++) {
        const vec low = load(sums + r * COLS), high = load(sums + r * COLS + LANES);
        store(out + r * stride, GATED ? silu_and_mul(low, high) : low);
        if (!GATED) store(out + r * stride + LANES, high);
    }
}

// As multiply_panel; x has room for rows up to the next multiple of 16.
template <bool GATED>
void multiply_panel_tiles(const uint16_t* x, int64_t rows, int64_t k, const uint16_t* panel, float* out, int64_t stride) {
    for (int64_t first = 0; first < rows; first += 32) {
        const int64_t height = std::min<int64_t>(32, rows - first);
        const auto run = height > 16 ? tile_rows<2, GATED> : tile_rows<1, GATED>;
        run(x + first * k, height, k, panel, out + first * stride, stride);
    }
}

#endif

// stride: of the rows of out.
template <bool GATED>
void multiply(const float* x, const uint16_t* panels, float* out, int64_t rows, int64_t n, int64_t k, int64_t stride) {
    static thread_local std::vector<uint16_t> scratch;  // the calling thread's, for the life of the process
    const int64_t padded = (rows + 31) / 32 * 32;
    if (static_cast<int64_t>(scratch.size()) < padded * k) scratch.resize(padded * k);
    uint16_t* rounded = scratch.data();
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows * k; i += 16)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(rounded + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
#ifdef __AMX_BF16__
        const bool tiles = rows >= AMX_MIN_ROWS && has_tiles();
        const TileConfig config;
        if (tiles) _tile_loadconfig(&config);
#endif
#pragma omp for schedule(static)
        for (int64_t panel = 0; panel < n / COLS; panel++) {
            const uint16_t* weights = panels + panel * COLS * k;
            float* to = out + panel * (GATED ? LANES : COLS);
#ifdef __AMX_BF16__
            if (tiles) {
                multiply_panel_tiles<GATED>(rounded, rows, k, weights, to, stride);
                continue;
            }
#endif
            multiply_panel<GATED>(rounded, rows, k, weights, to, stride);
        }
#ifdef __AMX_BF16__
        if (tiles) _tile_release();
#endif
    }
}

}  // namespace

extern "C" {
int radixrt_gemm_cols() { return COLS; }
int radixrt_gemm_depth() { return DEPTH; }

// weight [n][k] -> panels; n is a multiple of COLS, k of DEPTH.
void radixrt_gemm_pack(const uint16_t* weight, uint16_t* panels, int64_t n, int64_t k, int gated) {
#pragma omp parallel for schedule(static)
    for (int64_t panel = 0; panel < n / COLS; panel++) {
        uint16_t* to = panels + panel * COLS * k;
        for (int64_t d = 0; d < k; d += 2)
            for (int64_t column = 0; column < COLS; column++, to += 2) {
                const int64_t up = column / LANES;
                const int64_t row = gated ? panel * LANES + column % LANES + up * (n / 2) : panel * COLS + column;
                to[0] = weight[row * k + d];
                to[1] = weight[row * k + d + 1];
            }
    }
}

// x [rows][k]; out [rows][n], or [rows][n / 2] if gated.
void radixrt_gemm(const float* x, const uint16_t* panels, float* out, int64_t rows, int64_t n, int64_t k, int gated) {
    const int64_t stride = gated ? n / 2 : n, blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * rows / blocks, height = (block + 1) * rows / blocks - first;
        const auto run = gated ? multiply<true> : multiply<false>;
        run(x + first * k, panels, out + first * stride, height, n, k, stride);
    }
}
}

#else

extern "C" {
int radixrt_gemm_cols() { return 0; }  // no kernel for this processor
int radixrt_gemm_depth() { return 0; }
void radixrt_gemm_pack(const uint16_t*, uint16_t*, int64_t, int64_t, int) {}
void radixrt_gemm(const float*, const uint16_t*, float*, int64_t, int64_t, int64_t, int) {}
}

#endif
