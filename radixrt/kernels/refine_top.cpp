// Recomputes the logits near each row's largest, which a weight in panels gives rounded, from the plain weight.

#include <algorithm>
#include <utility>
#include <vector>

#include "replay.h"
#include "threads.h"
#include "vec.h"

namespace {

using namespace radixrt;

constexpr int64_t BLOCK = 64;  // logits whose largest is compared with the threshold at once

inline float largest(const float* logits, int64_t count) {
    float top = -__builtin_inff();
    int64_t i = 0;
    if (count >= LANES) {
        vec tops = load(logits);
        for (i = LANES; i + LANES <= count; i += LANES) {
            const vec x = load(logits + i);
            tops = x > tops ? x : tops;
        }
        for (int lane = 0; lane < LANES; lane++) top = std::max(top, tops[lane]);
    }
    for (; i < count; i++) top = std::max(top, logits[i]);
    return top;
}

// Columns of the logits within `near` of a row's largest: the `most` largest of these if there are more.
void find_near(const float* logits, int64_t count, float near, int64_t most, std::vector<std::pair<float, int64_t>>& found) {
    static thread_local std::vector<float> tops;
    tops.clear();
    for (int64_t first = 0; first < count; first += BLOCK) tops.push_back(largest(logits + first, std::min(BLOCK, count - first)));
    const float threshold = *std::max_element(tops.begin(), tops.end()) - near;
    found.clear();
    for (int64_t first = 0; first < count; first += BLOCK) {
        if (!(tops[first / BLOCK] >= threshold)) continue;
        for (int64_t i = first; i < std::min(first + BLOCK, count); i++)
            if (logits[i] >= threshold) found.emplace_back(-logits[i], i);
    }
    if (static_cast<int64_t>(found.size()) <= most) return;
    std::nth_element(found.begin(), found.begin() + most, found.end());
    found.resize(most);
}

template <typename T>
void refine(float* logits, const float* hidden, const T* weight, int64_t vocab, int64_t n, float near, int64_t most) {
    static thread_local std::vector<std::pair<float, int64_t>> found;
    find_near(logits, vocab, near, most, found);
    for (const auto& [_, column] : found) {
        const T* row = weight + column * n;
        vec sums = {};
        for (int64_t d = 0; d < n; d += LANES) sums += load(row + d) * load(hidden + d);
        logits[column] = sum(sums);
    }
}

template <typename T>
void refine_rows(float* logits, const float* hidden, const void* weight, int64_t rows, int64_t vocab, int64_t n, float near, int64_t most) {
    parallel(rows, [&](int64_t r) {
        refine(logits + r * vocab, hidden + r * n, static_cast<const T*>(weight), vocab, n, near, most);
    });
}

}  // namespace

extern "C" {
// logits [rows][vocab], hidden [rows][n], weight [vocab][n]; n is a multiple of LANES.
void radixrt_refine_top_bf16(float* logits, const float* hidden, const void* weight, int64_t rows, int64_t vocab, int64_t n,
                             float near, int64_t most) {
    refine_rows<bf16>(logits, hidden, weight, rows, vocab, n, near, most);
}
void radixrt_refine_top_f32(float* logits, const float* hidden, const void* weight, int64_t rows, int64_t vocab, int64_t n,
                            float near, int64_t most) {
    refine_rows<float>(logits, hidden, weight, rows, vocab, n, near, most);
}
}

RADIXRT_REPLAY(radixrt_refine_top_bf16)
RADIXRT_REPLAY(radixrt_refine_top_f32)
