// The small operations between matrix products, each in one pass. With few rows they run in the calling thread: waking
// another costs more than the work.

#include "replay.h"
#include "threads.h"
#include "vec.h"

namespace {

using namespace radixrt;

constexpr int64_t PARALLEL_ELEMENTS = 1 << 16;

// body(row) for each of some rows of `size` elements.
template <typename Body>
void for_rows(int rows, int64_t size, const Body& body) {
    if (rows * size <= PARALLEL_ELEMENTS) {
        for (int row = 0; row < rows; row++) body(row);
        return;
    }
    parallel_ranges(rows, rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) body(static_cast<int>(row));
    });
}

// residual += x (unless x is null); out = residual / rms(residual) * weight. Rows of `dim`, a multiple of LANES.
template <typename T>
void add_rms_norm(float* residual, const T* x, const float* weight, T* out, int rows, int dim, float eps) {
    for_rows(rows, dim, [&](int i) {
        float* r = residual + int64_t(i) * dim;
        vec squares = {};
        for (int d = 0; d < dim; d += LANES) {
            vec value = load(r + d);
            if (x) {
                value += load(x + int64_t(i) * dim + d);
                store(r + d, value);
            }
            squares += value * value;
        }
        float scale = 1.0f / __builtin_sqrtf(sum(squares) / dim + eps);
        for (int d = 0; d < dim; d += LANES) store(out + int64_t(i) * dim + d, load(r + d) * scale * load(weight + d));
    });
}

// RMSNorm of each of `heads` heads of each row, in place; dim is a multiple of LANES.
template <typename T>
void norm_heads(T* x, int64_t stride, const float* weight, int rows, int heads, int dim, float eps) {
    for_rows(rows, int64_t(heads) * dim, [&](int i) {
        for (int h = 0; h < heads; h++) {
            T* head = x + i * stride + h * dim;
            vec squares = {};
            for (int d = 0; d < dim; d += LANES) squares += load(head + d) * load(head + d);
            const float scale = 1.0f / __builtin_sqrtf(sum(squares) / dim + eps);
            for (int d = 0; d < dim; d += LANES) store(head + d, load(head + d) * scale * load(weight + d));
        }
    });
}

// out = silu(gate) * up for rows [gate | up], each of `size`, a multiple of LANES.
template <typename T>
void silu_and_mul(const T* gate_up, T* out, int rows, int size) {
    for_rows(rows, size, [&](int i) {
        const T* gate = gate_up + int64_t(i) * 2 * size;
        for (int d = 0; d < size; d += LANES) {
            vec x = load(gate + d);
            vec e = exp_nonpositive(x > 0.0f ? -x : x);
            vec sigmoid = (x > 0.0f ? splat(1.0f) : e) / (1.0f + e);
            store(out + int64_t(i) * size + d, x * sigmoid * load(gate + size + d));
        }
    });
}

// Rotates `heads` heads of each row in place: x * cos + swap_halves(x) * sin, with sin's first half negated, where the
// first rotary / 2 dimensions of each half are rotated. table is [positions][2][rotary]; rotary is a multiple of
// 2 * LANES.
template <typename T>
void rotate(T* x, int64_t stride, const float* table, const int64_t* positions, int rows, int heads, int dim,
            int rotary) {
    const int half = dim / 2, pairs = rotary / 2;
    for_rows(rows, int64_t(heads) * dim, [&](int i) {
        const float* cos = table + positions[i] * 2 * rotary;
        const float* sin = cos + rotary;
        for (int h = 0; h < heads; h++) {
            T* head = x + i * stride + h * dim;
            for (int d = 0; d < pairs; d += LANES) {
                vec low = load(head + d), high = load(head + half + d);
                store(head + d, low * load(cos + d) + high * load(sin + d));
                store(head + half + d, high * load(cos + pairs + d) + low * load(sin + pairs + d));
            }
        }
    });
}

}  // namespace

extern "C" {
#define RADIXRT_ELEMENTWISE(SUFFIX, TYPE)                                                                            \
    void radixrt_add_rms_norm_##SUFFIX(float* residual, const void* x, const float* weight, void* out, int rows,     \
                                       int dim, float eps) {                                                          \
        add_rms_norm<TYPE>(residual, static_cast<const TYPE*>(x), weight, static_cast<TYPE*>(out), rows, dim, eps);   \
    }                                                                                                                 \
    void radixrt_silu_and_mul_##SUFFIX(const void* gate_up, void* out, int rows, int size) {                          \
        silu_and_mul<TYPE>(static_cast<const TYPE*>(gate_up), static_cast<TYPE*>(out), rows, size);                   \
    }                                                                                                                 \
    void radixrt_norm_heads_##SUFFIX(void* x, int64_t stride, const float* weight, int rows, int heads, int dim,       \
                                     float eps) {                                                                     \
        norm_heads<TYPE>(static_cast<TYPE*>(x), stride, weight, rows, heads, dim, eps);                               \
    }                                                                                                                 \
    void radixrt_rotate_##SUFFIX(void* x, int64_t stride, const float* table, const int64_t* positions, int rows,      \
                                 int heads, int dim, int rotary) {                                                    \
        rotate<TYPE>(static_cast<TYPE*>(x), stride, table, positions, rows, heads, dim, rotary);                      \
    }
RADIXRT_ELEMENTWISE(bf16, bf16)
RADIXRT_ELEMENTWISE(f32, float)

// part [rows][columns] to the first columns of out, whose rows are `stride` apart.
void radixrt_place_columns(const float* part, float* out, int rows, int columns, int64_t stride) {
    for (int i = 0; i < rows; i++) std::memcpy(out + i * stride, part + int64_t(i) * columns, columns * sizeof(float));
}
}

#define RADIXRT_ELEMENTWISE_REPLAY(SUFFIX)         \
    RADIXRT_REPLAY(radixrt_add_rms_norm_##SUFFIX) \
    RADIXRT_REPLAY(radixrt_silu_and_mul_##SUFFIX) \
    RADIXRT_REPLAY(radixrt_norm_heads_##SUFFIX)   \
    RADIXRT_REPLAY(radixrt_rotate_##SUFFIX)
RADIXRT_ELEMENTWISE_REPLAY(bf16)
RADIXRT_ELEMENTWISE_REPLAY(f32)
RADIXRT_REPLAY(radixrt_place_columns)
