// Tiles of a GEMM with weights of 8 or 4 bits (code_panels.h): some rows of x, and one panel.

#pragma once

#include "buffer.h"
#include "code_panels.h"
#include "gemm_tiles.h"
#include "panel_results.h"
#include "tile_registers.h"

namespace radixrt {
namespace codes {

constexpr int BLOCK = 16;  // rows of x that lie together, and that are multiplied before the next panel is

inline vec to_float(ivec x) { return __builtin_convertvector(x, vec); }

// Without instructions for bytes, codes are converted to float32, and x stays as it is.

// Rows of x in float32, padded to the weight's depth, with the sums of groups.
struct FloatRows {
    int64_t depth, groups;
    Buffer<float> values, sums;

    void resize(int64_t rows, const Weight& weight) {
        depth = weight.depth(), groups = weight.groups();
        values.resize(rows * depth);
        sums.resize(rows * groups);
    }

    void fill(int64_t row, const float* x, const Weight& weight) {
        float* to = values.data() + row * depth;
        std::copy_n(x, weight.columns, to);
        std::fill(to + weight.columns, to + depth, 0.0f);
        for (int64_t g = 0; g < groups; g++) {
            float total = 0.0f;
            for (int64_t k = g * weight.group; k < std::min(weight.columns, (g + 1) * weight.group); k++) total += to[k];
            sums[row * groups + g] = total;
        }
    }
};

template <int R, int BITS>
inline void float_tile(const FloatRows& rows, int64_t first, const Weight& weight, int64_t index, const Results& results) {
    const Panel panel(weight, index);
    const int64_t depth = rows.depth;
    const float* x = rows.values.data() + first * depth;
    vec sums[R][2] = {};
    for (int64_t g = 0; g < rows.groups; g++) {
        const int64_t begin = g * weight.group, end = std::min(depth, begin + weight.group);
        vec part[R][2] = {}, zeros[2] = {};
        for (int half = 0; half < 2; half++) {
            const vec middle = splat(static_cast<float>(weight.middle()));
            zeros[half] = weight.offsets == ZEROS ? panel.zero(g, half) : middle;
        }
        for (int64_t k = begin; k < end; k += 4) {
            const auto* at = reinterpret_cast<const ivec*>(panel.codes + (BITS == 8 ? k * COLS : k / 8 * 4 * COLS));
            for (int half = 0; half < 2; half++) {
                ivec packed = at[half];
                if (BITS == 4 && k % 8) packed >>= 4;
                for (int i = 0; i < 4; i++) {
                    const vec value = to_float((packed >> (8 * i)) & (BITS == 8 ? 255 : 15)) - zeros[half];
                    for (int r = 0; r < R; r++) part[r][half] += splat(x[r * depth + k + i]) * value;
                }
            }
        }
        for (int half = 0; half < 2; half++) {
            const vec scale = panel.scale(g, half);
            for (int r = 0; r < R; r++) sums[r][half] += part[r][half] * scale;
            if (weight.offsets == MINIMA) {
                const vec minimum = panel.minimum(g, half);
                for (int r = 0; r < R; r++) sums[r][half] += minimum * splat(rows.sums[(first + r) * rows.groups + g]);
            }
        }
    }
    for (int r = 0; r < R; r++) results.store(r, 0, sums[r][0], sums[r][1]);
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define RADIXRT_CODES_BYTES 1

// Instructions for bytes multiply rows of x as integers of 16 bits, in two digits of a byte each.

constexpr int64_t AHEAD = 2048;  // bytes of codes
constexpr int STREAM_ROWS = 2, STREAMS = 4;  // rows that pass over several panels together, and panels times rows
constexpr int RADIX = 255;  // of digits from -127 to 127
constexpr float LARGEST = 127 * RADIX + 127;

// Rows of x, in blocks of BLOCK rows: [blocks][depth / DEPTH][high and low digit][BLOCK][DEPTH].
struct DigitRows {
    int64_t depth, groups;
    Buffer<int8_t> digits;
    Buffer<float> scales;  // [rows]
    Buffer<int32_t> sums;  // [rows][groups][2], of the digits

    void resize(int64_t rows, const Weight& weight) {
        depth = weight.depth(), groups = weight.groups();
        const int64_t padded = (rows + BLOCK - 1) / BLOCK * BLOCK;
        digits.resize(padded * depth * 2);
        scales.resize(padded);
        sums.resize(padded * groups * 2);
    }

    const int8_t* block(int64_t row) const { return digits.data() + row / BLOCK * BLOCK * depth * 2; }

    void fill(int64_t row, const float* x, const Weight& weight) {
        const int64_t columns = weight.columns;
        __m512 largest = _mm512_setzero_ps();
        for (int64_t k = 0; k < columns; k += 16)
            largest = _mm512_max_ps(largest, _mm512_abs_ps(load_padded(x, k, columns)));
        const float most = _mm512_reduce_max_ps(largest);
        scales[row] = most / LARGEST;
        const __m512 factor = _mm512_set1_ps(most > 0.0f ? LARGEST / most : 0.0f);
        const __m512 digit = _mm512_set1_ps(1.0f / RADIX);
        int8_t* to = digits.data() + row / BLOCK * BLOCK * depth * 2 + row % BLOCK * DEPTH;
        for (int64_t tile = 0; tile < depth; tile += DEPTH, to += 2 * BLOCK * DEPTH)
            for (int64_t k = 0; k < DEPTH; k += 16) {
                const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(load_padded(x, tile + k, columns), factor));
                const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(whole), digit));
                const __m512i low = _mm512_add_epi32(_mm512_sub_epi32(whole, _mm512_slli_epi32(high, 8)), high);
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), _mm512_cvtepi32_epi8(high));
                _mm_storeu_si128(reinterpret_cast<__m128i*>(to + BLOCK * DEPTH + k), _mm512_cvtepi32_epi8(low));
            }
        for (int which = 0; which < 2; which++) add_up(row, which, weight.group);
    }

  private:
    static __m512 load_padded(const float* x, int64_t k, int64_t columns) {
        if (k + 16 <= columns) return _mm512_loadu_ps(x + k);
        const int64_t left = std::max<int64_t>(columns - k, 0);
        return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << left) - 1), x + k);
    }

    // Fills sums of one of the two digits.
    void add_up(int64_t row, int which, int64_t group) {
        const int8_t* from = digits.data() + row / BLOCK * BLOCK * depth * 2 + (which * BLOCK + row % BLOCK) * DEPTH;
        int32_t* to = sums.data() + row * groups * 2 + which;
        const __m512i ones = _mm512_set1_epi8(1);
        __m512i fours = _mm512_setzero_si512();  // sums of four inputs each
        int64_t g = 0;
        for (int64_t tile = 0; tile < depth; tile += DEPTH, from += 2 * BLOCK * DEPTH) {
            fours = _mm512_dpbusd_epi32(fours, ones, _mm512_loadu_si512(from));
            const bool ends = (tile + DEPTH) % group == 0 || tile + DEPTH == depth;
            if (group % DEPTH == 0 && ends) {
                to[2 * g++] = _mm512_reduce_add_epi32(fours);
            } else if (DEPTH % group == 0) {
                alignas(64) int32_t parts[16];
                _mm512_store_si512(parts, fours);
                for (int first = 0; first < 16 && g < groups; first += group / 4) {
                    int32_t sum = 0;
                    for (int i = 0; i < group / 4; i++) sum += parts[first + i];
                    to[2 * g++] = sum;
                }
            } else {
                continue;
            }
            fours = _mm512_setzero_si512();
        }
    }
};

// Sums of products with integers of 16 bits, from the sums with their digits.
inline __m512 combined(__m512i high, __m512i low) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(RADIX), _mm512_cvtepi32_ps(low));
}

// R rows of one block and P neighbouring panels, the first of which is `index`. Few rows read several panels at a time: see
// gemm_tiles.h.
template <int R, int BITS, int P = 1>
inline void digit_tile(const DigitRows& rows, int64_t first, const Weight& weight, int64_t index, const Results& results) {
    constexpr int STEP = 32 / BITS;  // inputs in four bytes of a feature
    const Panel panel(weight, index);
    const int64_t panel_bytes = weight.panel_bytes();
    const int8_t* x = rows.block(first) + first % BLOCK * DEPTH;
    const int32_t* digit_sums = rows.sums.data() + first * rows.groups * 2;
    const __m512i nibble = _mm512_set1_epi8(15);
    const int32_t middle = weight.middle();
    __m512 sums[P][R][2];
#pragma GCC unroll 4
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) sums[p][r][0] = sums[p][r][1] = _mm512_setzero_ps();
    for (int64_t g = 0; g < rows.groups; g++) {
        __m512i high[P][R][2], low[P][R][2];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const int32_t* sum = digit_sums + (r * rows.groups + g) * 2;
#pragma GCC unroll 4
            for (int p = 0; p < P; p++) {
                high[p][r][0] = high[p][r][1] = _mm512_set1_epi32(-middle * sum[0]);
                low[p][r][0] = low[p][r][1] = _mm512_set1_epi32(-middle * sum[1]);
            }
        }
        const int64_t end = std::min(rows.depth, (g + 1) * weight.group);
        for (int64_t k = g * weight.group, stop; k < end; k = stop) {
            stop = std::min(end, (k / DEPTH + 1) * DEPTH);
            const int8_t* tile = x + k / DEPTH * 2 * BLOCK * DEPTH;
            const uint8_t* codes = panel.codes + k / STEP * COLS * 4;
            // Behind the end of a panel lies the next one of this tile: the next tile begins P - 1 panels further.
            const bool ends = codes + AHEAD - panel.codes >= panel_bytes;
            const int64_t ahead = ends ? AHEAD + (P - 1) * panel_bytes : AHEAD;
            for (int64_t i = k % DEPTH, until = i + stop - k; i < until; i += STEP, codes += COLS * 4) {
#pragma GCC unroll 4
                for (int p = 0; p < P; p++) {
                    const uint8_t* at = codes + p * panel_bytes;
                    const __m512i packed[2] = {_mm512_loadu_si512(at), _mm512_loadu_si512(at + 64)};
                    if constexpr (R <= STREAM_ROWS) {  // the processor does not look ahead beyond a page
                        _mm_prefetch(reinterpret_cast<const char*>(at) + ahead, _MM_HINT_T1);
                        _mm_prefetch(reinterpret_cast<const char*>(at + 64) + ahead, _MM_HINT_T1);
                    }
#pragma GCC unroll 2
                    for (int quad = 0; quad < STEP / 4; quad++) {
                        __m512i values[2] = {packed[0], packed[1]};
                        if constexpr (BITS == 4) {
                            for (__m512i& each : values)
                                each = _mm512_and_si512(quad ? _mm512_srli_epi16(each, 4) : each, nibble);
                        }
#pragma GCC unroll 4
                        for (int r = 0; r < R; r++) {
                            const int8_t* digits = tile + r * DEPTH + i + 4 * quad;
                            const __m512i first_digits = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(digits));
                            const __m512i second_digits =
                                _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(digits + BLOCK * DEPTH));
                            for (int half = 0; half < 2; half++) {
                                high[p][r][half] = _mm512_dpbusd_epi32(high[p][r][half], values[half], first_digits);
                                low[p][r][half] = _mm512_dpbusd_epi32(low[p][r][half], values[half], second_digits);
                            }
                        }
                    }
                }
            }
        }
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) {
            const Panel of(weight, index + p);
            for (int half = 0; half < 2; half++) {
                const __m512 scale = (__m512)of.scale(g, half);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++)
                    sums[p][r][half] =
                        _mm512_fmadd_ps(combined(high[p][r][half], low[p][r][half]), scale, sums[p][r][half]);
                if (weight.offsets == MIDDLE) continue;
                const __m512 minimum = (__m512)of.minimum(g, half);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    const int32_t* sum = digit_sums + (r * rows.groups + g) * 2;
                    const float total = static_cast<float>(sum[0]) * RADIX + static_cast<float>(sum[1]);
                    sums[p][r][half] = _mm512_fmadd_ps(_mm512_set1_ps(total), minimum, sums[p][r][half]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        const vec scale = splat(rows.scales[first + r]);
#pragma GCC unroll 4
        for (int p = 0; p < P; p++) results.store(r, p, (vec)sums[p][r][0] * scale, (vec)sums[p][r][1] * scale);
    }
}

#endif

#if defined(RADIXRT_CODES_BYTES) && defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define RADIXRT_CODES_TILES 1

// Rows from which tile registers are as fast as vectors, with one scale in a row, and with groups that fill a register.
constexpr int TILES_MIN_ROWS = 3, GROUP_TILES_MIN_ROWS = 8;
constexpr int BFLOAT16_MIN_ROWS = 16;  // which repay the conversion of a panel

// The codes of a panel of 4 bits, a byte each.
inline void unpack_nibbles(const Panel& panel, uint8_t* to) {
    const __m512i nibble = _mm512_set1_epi8(15);
    const uint8_t* from = panel.codes;
    for (int64_t k = 0; k < panel.weight.depth(); k += 8, from += 4 * COLS, to += 8 * COLS)
        for (int at = 0; at < 4 * COLS; at += 64) {
            const __m512i packed = _mm512_loadu_si512(from + at);
            _mm512_storeu_si512(to + at, _mm512_and_si512(packed, nibble));
            _mm512_storeu_si512(to + 4 * COLS + at, _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble));
        }
}

// The weights of a panel in bfloat16, in the layout of gemm_tiles.h, and zeros behind the last group: rows are padded with
// zeros, which a NaN in old memory would not leave zero.
inline void to_bfloat16(const Panel& panel, uint16_t* to) {
    const Weight& weight = panel.weight;
    const int64_t ends = std::min(weight.depth(), weight.groups() * weight.group);
    std::fill(to + ends * COLS, to + weight.depth() * COLS, uint16_t{0});
    const vec middle = splat(static_cast<float>(weight.middle()));
    const __m512i in_turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                             5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t g = 0; g < weight.groups(); g++) {
        const int64_t end = std::min(weight.depth(), (g + 1) * weight.group);
        for (int half = 0; half < 2; half++) {
            const vec scale = panel.scale(g, half);
            const vec offset = -middle * scale + (weight.offsets == MIDDLE ? vec{} : panel.minimum(g, half));
            for (int64_t k = g * weight.group; k < end; k += 4) {
                const int64_t line = weight.bits == 8 ? k / 4 : k / 8;
                ivec packed = reinterpret_cast<const ivec*>(panel.codes + line * COLS * 4)[half];
                if (weight.bits == 4) packed = (k % 8 ? packed >> 4 : packed) & 0x0f0f0f0f;
                for (int pair = 0; pair < 2; pair++, packed >>= 16) {
                    const vec first = to_float(packed & 255) * scale + offset;
                    const vec second = to_float(packed >> 8 & 255) * scale + offset;
                    const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
                    _mm512_storeu_si512(
                        to + (k / 2 + pair) * 2 * COLS + half * 2 * LANES, _mm512_permutexvar_epi16(in_turn, both));
                }
            }
        }
    }
}

// A row in bfloat16, padded to the weight's depth.
inline void round_row(const float* x, const Weight& weight, uint16_t* to) {
    for (int64_t k = 0; k < weight.depth(); k += 16) {
        const int64_t left = std::clamp<int64_t>(weight.columns - k, 0, 16);
        const __m512 values = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << left) - 1), x + k);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k), (__m256i)_mm512_cvtneps_pbh(values));
    }
}

// A block of rows, of which `height` are wanted, and one panel, whose codes are a byte each. Groups are whole rows or
// multiples of DEPTH.
inline void tile_block(const DigitRows& rows, int64_t first, int64_t height, const Panel& panel, const uint8_t* codes,
                       const Results& results) {
    const Weight& weight = panel.weight;
    const int8_t* x = rows.block(first);
    const int32_t middle = weight.middle();
    alignas(64) int32_t digits[2][BLOCK][COLS];
    alignas(64) float sums[BLOCK][COLS];
    for (int64_t g = 0; g < rows.groups; g++) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        const int64_t end = std::min(rows.depth, (g + 1) * weight.group);
        for (int64_t k = g * weight.group; k < end; k += DEPTH) {
            _tile_loadd(4, x + k * 2 * BLOCK, DEPTH);
            _tile_loadd(6, codes + k * COLS, 4 * COLS);
            _tile_loadd(7, codes + k * COLS + 64, 4 * COLS);
            _tile_dpbsud(0, 4, 6);
            _tile_dpbsud(1, 4, 7);
            _tile_loadd(5, x + k * 2 * BLOCK + BLOCK * DEPTH, DEPTH);
            _tile_dpbsud(2, 5, 6);
            _tile_dpbsud(3, 5, 7);
        }
        _tile_stored(0, digits[0], 4 * COLS);
        _tile_stored(1, digits[0][0] + LANES, 4 * COLS);
        _tile_stored(2, digits[1], 4 * COLS);
        _tile_stored(3, digits[1][0] + LANES, 4 * COLS);
        const bool offset = weight.offsets != MIDDLE;
        for (int half = 0; half < 2; half++) {
            const __m512 scale = (__m512)panel.scale(g, half);
            const __m512 minimum = offset ? (__m512)panel.minimum(g, half) : _mm512_setzero_ps();
            for (int64_t r = 0; r < height; r++) {
                const int32_t* sum = rows.sums.data() + ((first + r) * rows.groups + g) * 2;
                const int at = half * LANES;
                const __m512i high =
                    _mm512_sub_epi32(_mm512_load_si512(digits[0][r] + at), _mm512_set1_epi32(middle * sum[0]));
                const __m512i low =
                    _mm512_sub_epi32(_mm512_load_si512(digits[1][r] + at), _mm512_set1_epi32(middle * sum[1]));
                __m512 value = g ? _mm512_load_ps(sums[r] + at) : _mm512_setzero_ps();
                value = _mm512_fmadd_ps(combined(high, low), scale, value);
                if (offset) {
                    const float total = static_cast<float>(sum[0]) * RADIX + static_cast<float>(sum[1]);
                    value = _mm512_fmadd_ps(_mm512_set1_ps(total), minimum, value);
                }
                _mm512_store_ps(sums[r] + at, value);
            }
        }
    }
    for (int64_t r = 0; r < height; r++) {
        const vec scale = splat(rows.scales[first + r]);
        results.store(r, 0, load(sums[r]) * scale, load(sums[r] + LANES) * scale);
    }
}

#endif

}  // namespace codes
}  // namespace radixrt
