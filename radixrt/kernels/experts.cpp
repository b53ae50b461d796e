// Mixtures of experts with bfloat16 weights and float32 results.
//
// The pairs of token and expert are sorted by expert. Threads divide the panels of the weights (gemm_tiles.h): first those
// of gate and up of every expert that is hit, then those of down. A panel of down is the same columns of the result for
// all experts, so one thread adds them up, in the order of the experts.

#include "gemm_tiles.h"
#include "threads.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)

namespace {

using namespace radixrt;

constexpr int64_t BLOCK_TOKENS = 1024;  // more tokens would need more memory and reuse a weight hardly better

// Rows of one expert: of the sorted pairs from `first` on.
struct Block {
    int64_t expert, first, rows;
};

struct Layer {
    const uint16_t *gate_up, *down;
    int64_t num_experts, hidden, columns;
    const float *gate_up_bias, *down_bias;  // null: without biases, and gated by silu
    float alpha, limit;                     // of the clamped gate of experts with biases
};

// (up + 1) * gate * sigmoid(alpha * gate), clamped.
inline vec clamped_swiglu(vec gate, vec up, float alpha, float limit) {
    gate = gate > limit ? splat(limit) : gate;
    up = up > limit ? splat(limit) : up;
    up = up < -limit ? splat(-limit) : up;
    const vec scaled = gate * alpha;
    const vec e = exp_nonpositive(scaled > 0.0f ? -scaled : scaled);
    return (up + 1.0f) * gate * (scaled > 0.0f ? splat(1.0f) : e) / (1.0f + e);
}

// The inner values of the sixteen features of one panel, for the rows of a block.
inline void gate_panel(const Tiles& tiles, const Layer& layer, const Block& block, const uint16_t* rows,
                       const uint16_t* panels, int64_t panel, float* sums, uint16_t* inner) {
    const int64_t hidden = layer.hidden, columns = layer.columns;
    const bool biased = layer.gate_up_bias != nullptr;
    const int64_t stride = biased ? COLS : LANES;
    const uint16_t* x = rows + block.first * hidden;
    tiles.multiply(x, block.rows, hidden, panels + panel * COLS * hidden, {sums, stride, !biased});
    if (biased) {
        const float* bias = layer.gate_up_bias + block.expert * 2 * columns + panel * LANES;
        const vec gate = load(bias), up = load(bias + columns);
        for (int64_t r = 0; r < block.rows; r++) {
            float* row = sums + r * stride;
            store(row, clamped_swiglu(load(row) + gate, load(row + LANES) + up, layer.alpha, layer.limit));
        }
    }
    for (int64_t r = 0; r < block.rows; r++)
        round_to_bfloat16(sums + r * stride, inner + (block.first + r) * columns + panel * LANES, LANES);
}

// Sort pairs by expert, in order; returns the blocks of the experts that are hit.
std::vector<Block> sort_pairs(const int64_t* experts, int64_t pairs, int64_t num_experts, std::vector<int64_t>& order) {
    std::vector<int64_t> next(num_experts + 1, 0);
    for (int64_t p = 0; p < pairs; p++) next[experts[p] + 1]++;
    std::vector<Block> blocks;
    for (int64_t e = 0; e < num_experts; e++) {
        const int64_t count = next[e + 1];
        for (int64_t row = 0; row < count; row += BLOCK_ROWS)
            blocks.push_back({e, next[e] + row, std::min(BLOCK_ROWS, count - row)});
        next[e + 1] += next[e];
    }
    order.resize(pairs);
    for (int64_t p = 0; p < pairs; p++) order[next[experts[p]]++] = p;
    return blocks;
}

void run_block(const Layer& layer, const float* x, const int64_t* experts, const float* weights, float* out,
               int64_t tokens, int64_t top_k) {
    static thread_local std::vector<uint16_t> scratch;  // the calling thread's, for the life of the process
    const int64_t pairs = tokens * top_k, padded = pairs + 32, hidden = layer.hidden, columns = layer.columns;
    if (static_cast<int64_t>(scratch.size()) < padded * (hidden + columns)) scratch.resize(padded * (hidden + columns));
    uint16_t *rounded = scratch.data(), *inner = rounded + padded * hidden;
    std::vector<int64_t> order;
    const std::vector<Block> blocks = sort_pairs(experts, pairs, layer.num_experts, order);
    std::fill_n(out, tokens * hidden, 0.0f);
    parallel_ranges(pairs, pairs, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; p++)
            round_to_bfloat16(x + order[p] / top_k * hidden, rounded + p * hidden, hidden);
    });
    const int64_t inner_panels = columns / LANES;
    parallel_ranges(static_cast<int64_t>(blocks.size()) * inner_panels, inner_panels, [&](int64_t begin, int64_t end) {
        const Tiles tiles;
        float sums[BLOCK_ROWS * COLS];
        for (int64_t i = begin; i < end; i++) {
            const Block& block = blocks[i / inner_panels];
            const uint16_t* panels = layer.gate_up + block.expert * 2 * columns * hidden;
            gate_panel(tiles, layer, block, rounded, panels, i % inner_panels, sums, inner);
        }
    });
    parallel_ranges(hidden / COLS, hidden, [&](int64_t begin, int64_t end) {
        const Tiles tiles;
        float sums[BLOCK_ROWS * COLS];
        for (const Block& block : blocks) {
            const uint16_t* panels = layer.down + block.expert * hidden * columns;
            for (int64_t panel = begin; panel < end; panel++) {
                tiles.multiply(inner + block.first * columns, block.rows, columns, panels + panel * COLS * columns,
                               {sums, COLS, false});
                vec low = {}, high = {};
                if (layer.down_bias != nullptr) {
                    const float* bias = layer.down_bias + block.expert * hidden + panel * COLS;
                    low = load(bias), high = load(bias + LANES);
                }
                for (int64_t r = 0; r < block.rows; r++) {
                    const int64_t pair = order[block.first + r];
                    float* to = out + pair / top_k * hidden + panel * COLS;
                    const vec scale = splat(weights[pair]);
                    store(to, load(to) + scale * (load(sums + r * COLS) + low));
                    store(to + LANES, load(to + LANES) + scale * (load(sums + r * COLS + LANES) + high));
                }
            }
        }
    });
}

}  // namespace

extern "C" {
// x [tokens][hidden]; experts, weights [tokens][top_k]; gate_up [num_experts], panels of [2 * columns][hidden], gated;
// down [num_experts], panels of [hidden][columns]; out [tokens][hidden]. gate_up_bias [num_experts][2 * columns] and
// down_bias [num_experts][hidden] of experts with a clamped gate of these alpha and limit; null for silu without biases.
void radixrt_experts(const float* x, const int64_t* experts, const float* weights, const uint16_t* gate_up,
                     const uint16_t* down, float* out, int64_t tokens, int64_t top_k, int64_t num_experts,
                     int64_t hidden, int64_t columns, const float* gate_up_bias, const float* down_bias, float alpha,
                     float limit) {
    const Layer layer{gate_up, down, num_experts, hidden, columns, gate_up_bias, down_bias, alpha, limit};
    for (int64_t first = 0; first < tokens; first += BLOCK_TOKENS)
        run_block(layer, x + first * hidden, experts + first * top_k, weights + first * top_k, out + first * hidden,
                  std::min(BLOCK_TOKENS, tokens - first), top_k);
}
}

#else

extern "C" {
void radixrt_experts(const float*, const int64_t*, const float*, const uint16_t*, const uint16_t*, float*, int64_t,
                     int64_t, int64_t, int64_t, int64_t, const float*, const float*, float, float) {}
}

#endif
