// Sixteen floats at a time, in GCC/Clang vector extensions, which the compiler lowers to what the machine has.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace radixrt {

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(32), aligned(2), may_alias));
constexpr int LANES = 16;

struct bf16 { uint16_t bits; };

inline vec splat(float x) { return x - vec{}; }  // a sum with zero would remain: it changes -0

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline vec load(const bf16* p) {
#ifdef __AVX512F__  // GCC 12 converts the halves of a vector one by one
    const __m512i half = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return (vec)_mm512_slli_epi32(half, 16);
#else
    hvec h = *reinterpret_cast<const hvec*>(p);
    ivec wide = __builtin_convertvector(h, ivec) << 16;
    vec out;
    std::memcpy(&out, &wide, sizeof out);
    return out;
#endif
}
inline void store(float* p, vec x) { *reinterpret_cast<vec*>(p) = x; }
inline void store(bf16* p, vec x) {  // round to nearest even; attention outputs are finite unless the inputs are not
    ivec bits;
    std::memcpy(&bits, &x, sizeof bits);
    ivec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    hvec out = __builtin_convertvector(rounded, hvec);
    *reinterpret_cast<hvec*>(p) = out;
}

inline float sum(vec x) {
    float lanes[LANES];
    store(lanes, x);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

// Pairwise sums of lanes: four rounds over sixteen vectors leave the sum of vector i in lane i, with three instructions
// for each pair instead of a reduction for each vector. Round n takes vectors that already hold 2^(n-1) sums each.
template <int ROUND>
inline vec merge(vec a, vec b) {
    if constexpr (ROUND == 1)
        return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    else if constexpr (ROUND == 2)
        return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    else if constexpr (ROUND == 3)
        return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
               __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    else
        return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
               __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// Exchanges the off-diagonal blocks of S lanes between two rows that lie S apart: one step of a transposition.
#define RADIXRT_SWAP(NAME, LOW, HIGH)                          \
    inline void NAME(vec& a, vec& b) {                         \
        const vec low = __builtin_shufflevector(a, b, LOW);    \
        b = __builtin_shufflevector(a, b, HIGH);               \
        a = low;                                               \
    }
#define RADIXRT_LIST(...) __VA_ARGS__
RADIXRT_SWAP(swap8, RADIXRT_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
             RADIXRT_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
RADIXRT_SWAP(swap4, RADIXRT_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
             RADIXRT_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
RADIXRT_SWAP(swap2, RADIXRT_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
             RADIXRT_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
RADIXRT_SWAP(swap1, RADIXRT_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
             RADIXRT_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#undef RADIXRT_SWAP
#undef RADIXRT_LIST

// Sixteen rows of sixteen become columns.
inline void transpose(vec (&rows)[LANES]) {
    for (int i = 0; i < 8; i++) swap8(rows[i], rows[i + 8]);
    for (int half = 0; half < LANES; half += 8)
        for (int i = half; i < half + 4; i++) swap4(rows[i], rows[i + 4]);
    for (int quarter = 0; quarter < LANES; quarter += 4)
        for (int i = quarter; i < quarter + 2; i++) swap2(rows[i], rows[i + 2]);
    for (int i = 0; i < LANES; i += 2) swap1(rows[i], rows[i + 1]);
}

// exp for x <= 0; relative error about 2e-7 (Cephes' expf polynomial).
inline vec exp_nonpositive(vec x) {
    x = x < -87.0f ? splat(-87.0f) : x;
    vec scaled = x * 1.44269504088896341f - 0.5f;
    ivec n = __builtin_convertvector(scaled, ivec);  // truncation towards zero: round(x / ln 2) for x <= 0
    vec nf = __builtin_convertvector(n, vec);
    vec r = x - nf * 0.693359375f - nf * -2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = (n + 127) << 23;
    vec factor;
    std::memcpy(&factor, &power, sizeof factor);
    return p * factor;
}

inline vec silu_and_mul(vec gate, vec up) {
    const vec e = exp_nonpositive(gate > 0.0f ? -gate : gate);
    return gate * (gate > 0.0f ? splat(1.0f) : e) / (1.0f + e) * up;
}

}  // namespace radixrt
