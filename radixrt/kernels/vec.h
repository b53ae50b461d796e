// Sixteen floats at a time, in GCC/Clang vector extensions, which the compiler lowers to what the machine has.
#pragma once

#include <cstdint>
#include <cstring>

namespace radixrt {

typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(32), aligned(2), may_alias));
constexpr int LANES = 16;

struct bf16 { uint16_t bits; };

inline vec splat(float x) { return vec{} + x; }

inline vec load(const float* p) { return *reinterpret_cast<const vec*>(p); }
inline vec load(const bf16* p) {
    hvec h = *reinterpret_cast<const hvec*>(p);
    ivec wide = __builtin_convertvector(h, ivec) << 16;
    vec out;
    std::memcpy(&out, &wide, sizeof out);
    return out;
}
inline float load1(const float* p) { return *p; }
inline float load1(const bf16* p) {
    uint32_t wide = uint32_t(p->bits) << 16;
    float out;
    std::memcpy(&out, &wide, sizeof out);
    return out;
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

}  // namespace radixrt
