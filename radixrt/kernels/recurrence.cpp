// Recurrent layers over packed rows of tokens, whose states stand in pools of slots: gated delta nets, and gated short
// convolutions. Row i has the tokens [starts[i], starts[i + 1]), reads its state from slot src[i] and writes it to slot
// dst[i], which may be the same one. All numbers are float32, but weights of convolutions may be bfloat16.
//
// The rows [chains[i], chains[i + 1]) go on from one another: each reads the slot that the one before it writes. One
// thread computes a head, or a block of channels, of all rows of a chain, in this order. Without chains (null) each row
// stands alone.
//
// The delta rule goes through the tokens one by one, in prompts too: sixteen rows of a state stay in the L1 cache for all
// tokens of a row, and a token passes over them once, which updates them by the token before and reads two dot products.
// By chunks of 64 tokens, as matrix products, there would be half as much arithmetic again.

#include <algorithm>
#include <cmath>
#include <vector>

#include "threads.h"
#include "vec.h"

namespace {

using namespace radixrt;

constexpr int MAX_DIM = 128;
constexpr int MAX_TAPS = 8;
constexpr int64_t SERIAL = 1 << 14;  // numbers that one thread convolves sooner than several meet
constexpr int64_t SCRATCH = 1;  // the slot of padding rows, which read zeros (slot 0) and write nothing
constexpr float NORM_EPS = 1e-6f;

struct Rows {
    const int64_t *src, *dst, *starts, *chains;
    int count;  // of chains, or of rows where there are none

    int first(int chain) const { return chains ? int(chains[chain]) : chain; }
    int tokens() const { return int(starts[first(count)]); }

    int64_t source(int row) const { return dst[row] == SCRATCH ? 0 : src[row]; }
    bool writes(int row) const { return dst[row] != SCRATCH; }
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline vec silu(vec x) {
    const vec e = exp_nonpositive(x > 0.0f ? -x : x);
    return x * (x > 0.0f ? splat(1.0f) : e) / (1.0f + e);
}

// Causal convolution of `width` neighbouring channels, a multiple of LANES up to MAX_DIM, of one row.
//   load_input(token, d): vector of inputs d .. d + LANES of a token
//   finish(token, results): takes `width` results
template <typename W, typename LoadInput, typename Finish>
void convolve(const W* weight, int taps, float* pool, int64_t size, int first, int width, const Rows& rows, int row,
              LoadInput load_input, Finish finish) {
    const int earlier = taps - 1;
    float weights[MAX_TAPS][MAX_DIM], window[MAX_TAPS][MAX_DIM], results[MAX_DIM];
    const float* old = pool + (rows.source(row) * size + first) * earlier;
    for (int d = 0; d < width; d++) {
        for (int tap = 0; tap < taps; tap++) weights[tap][d] = to_float(weight[int64_t(first + d) * taps + tap]);
        for (int tap = 0; tap < earlier; tap++) window[tap][d] = old[d * earlier + tap];
    }
    int oldest = 0;  // the window is a ring
    for (int64_t token = rows.starts[row]; token < rows.starts[row + 1]; token++) {
        const int newest = (oldest + earlier) % taps;
        for (int d = 0; d < width; d += LANES) {
            const vec x = load_input(token, d);
            store(window[newest] + d, x);
            vec total = x * load(weights[earlier] + d);
            for (int tap = 0; tap < earlier; tap++)
                total += load(window[(oldest + tap) % taps] + d) * load(weights[tap] + d);
            store(results + d, total);
        }
        oldest = (oldest + 1) % taps;
        finish(token, results);
    }
    if (!rows.writes(row)) return;
    float* kept = pool + (rows.dst[row] * size + first) * earlier;
    for (int d = 0; d < width; d++)
        for (int tap = 0; tap < earlier; tap++) kept[d * earlier + tap] = window[(oldest + tap) % taps][d];
}

struct Net {
    const float *x, *a_log, *dt_bias, *norm;
    int64_t stride;  // of the tokens of x
    float eps;
    float *conv_pool, *states, *mixed, *out;  // mixed: scratch [tokens][channels]
    int k_heads, v_heads, k_dim, v_dim, taps;
    Rows rows;

    int channels() const { return 2 * k_heads * k_dim + v_heads * v_dim; }
};

// One head of q, k or v of one row: convolution and SiLU; q and k get length 1, and q is divided by sqrt(k_dim).
template <typename W>
void convolve_head(const Net& n, const W* weight, int row, int head) {
    const bool is_key = head < 2 * n.k_heads;
    const int width = is_key ? n.k_dim : n.v_dim;
    const int first = is_key ? head * n.k_dim : 2 * n.k_heads * n.k_dim + (head - 2 * n.k_heads) * n.v_dim;
    const float scale = head < n.k_heads ? 1.0f / std::sqrt(float(n.k_dim)) : 1.0f;
    const int64_t channels = n.channels();
    auto load_input = [&](int64_t token, int d) { return load(n.x + token * n.stride + first + d); };
    auto finish = [&](int64_t token, float* results) {
        float* to = n.mixed + token * channels + first;
        vec squares = {};
        for (int d = 0; d < width; d += LANES) {
            const vec x = silu(load(results + d));
            squares += x * x;
            store(to + d, x);
        }
        if (!is_key) return;
        const float factor = scale / std::sqrt(sum(squares) + NORM_EPS);
        for (int d = 0; d < width; d += LANES) store(to + d, load(to + d) * factor);
    };
    convolve(weight, n.taps, n.conv_pool, channels, first, width, n.rows, row, load_input, finish);
}

// Lane i of the result is the sum of vector i.
inline vec sums(const vec (&x)[LANES]) {
    vec parts[4];
    for (int g = 0; g < 4; g++)
        parts[g] = merge<2>(merge<1>(x[4 * g], x[4 * g + 1]), merge<1>(x[4 * g + 2], x[4 * g + 3]));
    return merge<4>(merge<3>(parts[0], parts[1]), merge<3>(parts[2], parts[3]));
}

// LANES rows of the state of one head, k_dim = VECS * LANES wide, from row `first` on, through all tokens of a row.
// gates: the decay and beta of each token.
template <int VECS>
void update_rows(const Net& n, int row, int head, int first, const float* gates) {
    constexpr int DIM = VECS * LANES;
    const int64_t begin = n.rows.starts[row], end = n.rows.starts[row + 1], channels = n.channels();
    const int key = head / (n.v_heads / n.k_heads) * DIM, keys = n.k_heads * DIM;
    const int value = 2 * keys + head * n.v_dim + first;
    const int64_t at = (int64_t(head) * n.v_dim + first) * DIM, size = int64_t(n.v_heads) * n.v_dim * DIM;
    float state[LANES * DIM];
    std::memcpy(state, n.states + n.rows.source(row) * size + at, sizeof state);
    vec k_before[VECS] = {}, added = {};
    float decay_before = 1.0f;
    for (int64_t token = begin; token < end; token++) {
        const float* mixed = n.mixed + token * channels;
        vec q[VECS], k[VECS], both = {};
        for (int j = 0; j < VECS; j++) {
            q[j] = load(mixed + key + j * LANES);
            k[j] = load(mixed + keys + key + j * LANES);
            both += q[j] * k[j];
        }
        vec of_k[LANES], of_q[LANES];
        for (int i = 0; i < LANES; i++) {
            const vec more = splat(added[i]);
            vec with_k = {}, with_q = {};
            for (int j = 0; j < VECS; j++) {
                float* s = state + i * DIM + j * LANES;
                const vec x = load(s) * decay_before + more * k_before[j];
                store(s, x);
                with_k += x * k[j];
                with_q += x * q[j];
            }
            of_k[i] = with_k;
            of_q[i] = with_q;
        }
        const float decay = gates[2 * (token - begin)], beta = gates[2 * (token - begin) + 1];
        added = beta * (load(mixed + value) - decay * sums(of_k));
        store(n.out + token * n.v_heads * n.v_dim + head * n.v_dim + first, decay * sums(of_q) + added * sum(both));
        decay_before = decay;
        for (int j = 0; j < VECS; j++) k_before[j] = k[j];
    }
    if (!n.rows.writes(row)) return;
    float* kept = n.states + n.rows.dst[row] * size + at;
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < VECS; j++)
            store(kept + i * DIM + j * LANES,
                  load(state + i * DIM + j * LANES) * decay_before + splat(added[i]) * k_before[j]);
}

// One value head of one row: the delta rule, then the norm and the gate.
void mix_head(const Net& n, int row, int head) {
    static thread_local std::vector<float> gates;  // for the life of the thread
    const int64_t begin = n.rows.starts[row], end = n.rows.starts[row + 1], values = int64_t(n.v_heads) * n.v_dim;
    gates.resize(2 * (end - begin));
    for (int64_t token = begin; token < end; token++) {
        const float* beta = n.x + token * n.stride + n.channels() + values + head;
        const float a = beta[n.v_heads] + n.dt_bias[head];
        const float softplus = std::max(a, 0.0f) + std::log1p(std::exp(-std::fabs(a)));
        gates[2 * (token - begin)] = std::exp(-std::exp(n.a_log[head]) * softplus);
        gates[2 * (token - begin) + 1] = 1.0f / (1.0f + std::exp(-*beta));
    }
    for (int first = 0; first < n.v_dim; first += LANES) switch (n.k_dim / LANES) {
        case 1: update_rows<1>(n, row, head, first, gates.data()); break;
        case 2: update_rows<2>(n, row, head, first, gates.data()); break;
        case 4: update_rows<4>(n, row, head, first, gates.data()); break;
        case 8: update_rows<8>(n, row, head, first, gates.data()); break;
    }
    for (int64_t token = begin; token < end; token++) {
        float* out = n.out + token * values + head * n.v_dim;
        const float* z = n.x + token * n.stride + n.channels() + head * n.v_dim;
        vec squares = {};
        for (int d = 0; d < n.v_dim; d += LANES) squares += load(out + d) * load(out + d);
        const float scale = 1.0f / std::sqrt(sum(squares) / n.v_dim + n.eps);
        for (int d = 0; d < n.v_dim; d += LANES)
            store(out + d, load(out + d) * scale * load(n.norm + d) * silu(load(z + d)));
    }
}

template <typename W>
void gated_delta_net(const Net& n, const W* weight) {
    const int heads = 2 * n.k_heads + n.v_heads;
    parallel(n.rows.count * heads, [&](int64_t i) {
        for (int row = n.rows.first(i / heads); row < n.rows.first(i / heads + 1); row++)
            convolve_head(n, weight, row, i % heads);
    });
    parallel(n.rows.count * n.v_heads, [&](int64_t i) {
        for (int row = n.rows.first(i / n.v_heads); row < n.rows.first(i / n.v_heads + 1); row++)
            mix_head(n, row, i % n.v_heads);
    });
}

// x: the gate before the convolution, the gate behind it, and its input, `size` channels each, a multiple of LANES.
template <typename W>
void short_conv(const float* x, int64_t stride, const W* weight, float* pool, float* out, int size, int taps, const Rows& rows) {
    const int blocks = (size + MAX_DIM - 1) / MAX_DIM;
    auto run = [&](int64_t i) {
        const int first = i % blocks * MAX_DIM, width = std::min(MAX_DIM, size - first);
        auto load_input = [&](int64_t token, int d) {
            const float* from = x + token * stride + first + d;
            return load(from) * load(from + 2 * size);
        };
        auto finish = [&](int64_t token, float* results) {
            for (int d = 0; d < width; d += LANES)
                store(out + token * size + first + d, load(results + d) * load(x + token * stride + size + first + d));
        };
        for (int row = rows.first(i / blocks); row < rows.first(i / blocks + 1); row++)
            convolve(weight, taps, pool, size, first, width, rows, row, load_input, finish);
    };
    const int64_t pieces = rows.count * blocks;
    if (int64_t(rows.tokens()) * size > SERIAL)
        parallel(pieces, run);
    else
        for (int64_t i = 0; i < pieces; i++) run(i);
}

}  // namespace

extern "C" {
int radixrt_recurrence_max_taps() { return MAX_TAPS; }

#define RADIXRT_RECURRENCE(SUFFIX, TYPE)                                                                             \
    void radixrt_gated_delta_net_##SUFFIX(                                                                           \
        const float* x, int64_t stride, const void* conv, const float* a_log, const float* dt_bias,                  \
        const float* norm, float eps, float* conv_pool, float* states, const int64_t* src, const int64_t* dst,       \
        const int64_t* starts, const int64_t* chains, int count, float* mixed, float* out, int k_heads, int v_heads, \
        int k_dim, int v_dim, int taps) {                                                                            \
        gated_delta_net({x, a_log, dt_bias, norm, stride, eps, conv_pool, states, mixed, out, k_heads, v_heads,      \
                         k_dim, v_dim, taps, {src, dst, starts, chains, count}},                                     \
                        static_cast<const TYPE*>(conv));                                                             \
    }                                                                                                                \
    void radixrt_short_conv_##SUFFIX(const float* x, int64_t stride, const void* weight, float* pool,                \
                                     const int64_t* src, const int64_t* dst, const int64_t* starts,                  \
                                     const int64_t* chains, int count, float* out, int size, int taps) {             \
        short_conv(x, stride, static_cast<const TYPE*>(weight), pool, out, size, taps,                               \
                   {src, dst, starts, chains, count});                                                               \
    }
RADIXRT_RECURRENCE(bf16, bf16)
RADIXRT_RECURRENCE(f32, float)
}
