// Weights of 8 or 4 bits in memory.
//
// A panel has the codes of COLS output features as unsigned numbers, [K / 4][COLS][4] of 8 bits or [K / 8][COLS][4] of two
// numbers of 4 bits each, of which the first four come in the low halves; then a scale for each group of inputs,
// [groups][COLS]; and perhaps an offset for each of these. K is padded to a multiple of DEPTH, and a panel to whole cache
// lines.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vec.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace radixrt {
namespace codes {

constexpr int COLS = 2 * LANES;
constexpr int DEPTH = 64;  // inputs of a tile register of bytes

enum Offsets : int32_t { MIDDLE, ZEROS, MINIMA };

// A weight [rows][columns] in panels; radixrt/layers/formats/cpu_codes.py has the same fields.
struct Weight {
    uint8_t* panels;
    int64_t rows, columns;
    int64_t group;    // inputs that share a scale, a multiple of 8; the last group may have fewer inputs
    int32_t bits;     // 8 or 4
    int32_t half;     // scales and minima are float16, else float32
    int32_t offsets;  // MIDDLE: value = (code - middle) * scale; ZEROS: (code - zero) * scale, zeros are uint8;
                      // MINIMA: (code - middle) * scale + minimum
    int32_t gated;    // a panel has sixteen features of gate and the same ones of up; the result is silu(gate) * up

    int64_t depth() const { return (columns + DEPTH - 1) / DEPTH * DEPTH; }
    int64_t groups() const { return (columns + group - 1) / group; }
    int64_t num_panels() const { return (rows + COLS - 1) / COLS; }
    int64_t results() const { return gated ? rows / 2 : rows; }
    int middle() const { return bits == 8 ? 128 : offsets == MIDDLE ? 8 : 0; }
    int64_t codes_bytes() const { return depth() * COLS * bits / 8; }
    int64_t scales_bytes() const { return groups() * COLS * (half ? 2 : 4); }
    int64_t offsets_bytes() const { return offsets == MIDDLE ? 0 : offsets == ZEROS ? groups() * COLS : scales_bytes(); }
    int64_t panel_bytes() const { return (codes_bytes() + scales_bytes() + offsets_bytes() + 63) / 64 * 64; }
};

inline ivec bits_of(vec x) {
    ivec bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline vec from_bits(ivec bits) {
    vec x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline vec load_half(const uint8_t* p) {
#ifdef __AVX512F__
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
    const ivec bits = __builtin_convertvector(*reinterpret_cast<const hvec*>(p), ivec);
    // Read as float32, the exponent is too small by 112, also the exponent of numbers without a leading one.
    const vec magnitude = from_bits((bits & 0x7fff) << 13) * 0x1p112f;
    return from_bits(bits_of(magnitude) | (bits & 0x8000) << 16);
#endif
}

// Nearest float16 of a number that float16 represents.
inline uint16_t exact_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const float magnitude = std::abs(value);
    const float scaled = magnitude * 0x1p-112f;
    uint32_t narrow;
    std::memcpy(&narrow, &scaled, 4);
    return static_cast<uint16_t>(bits >> 16 & 0x8000 | narrow >> 13);
}

// One panel of a weight. `half` chooses the first or the last sixteen features.
struct Panel {
    const Weight& weight;
    uint8_t *codes, *scales, *offsets;

    Panel(const Weight& of, int64_t index)
        : weight(of),
          codes(of.panels + index * of.panel_bytes()),
          scales(codes + of.codes_bytes()),
          offsets(scales + of.scales_bytes()) {}

    vec scale(int64_t group, int half) const { return number(scales, group, half); }

    vec zero(int64_t group, int half) const {
        typedef uint8_t bytes __attribute__((vector_size(16), aligned(1), may_alias));
        const auto* at = reinterpret_cast<const bytes*>(offsets + group * COLS + half * LANES);
        return __builtin_convertvector(*at, vec);
    }

    // Addend of (code - middle) * scale, for a weight with zeros or minima.
    vec minimum(int64_t group, int half) const {
        return weight.offsets == MINIMA ? number(offsets, group, half) : -zero(group, half) * scale(group, half);
    }

  private:
    vec number(const uint8_t* section, int64_t group, int half) const {
        const int64_t at = group * COLS + half * LANES;
        return weight.half ? load_half(section + 2 * at) : load(reinterpret_cast<const float*>(section) + at);
    }
};

}  // namespace codes
}  // namespace radixrt
