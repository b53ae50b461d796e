// Causal attention over a paged KV pool, read in place: no row's context is ever copied.
//
// A task is one row, one kv head and a block of its queries; the `group` query heads that share the kv head are
// computed together, so each key and value is read once for all of them. Softmax is online over blocks of BLOCK
// positions (Milakov and Gimelshein, arXiv 1805.02867). All arithmetic is float32, whatever the pool holds.

#include <algorithm>

#include "vec.h"

namespace {

using namespace radixrt;

constexpr int BLOCK = 64;          // positions of the context handled at once
constexpr int QUERY_BLOCK = 32;    // queries of one row in a task
constexpr int DOT_ROWS = 8;        // up to this many (query, head) rows the dot-product path is used
constexpr int MAX_DIM = 256;

// c[m][N] (+)= a[m][K] . b[K][N] for N a multiple of LANES; row strides in floats.
template <int ROWS, int COLS>
inline void gemm_tile(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int depth, bool add) {
    vec acc[ROWS][COLS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) acc[i][j] = add ? load(c + i * ldc + j * LANES) : vec{};
    for (int k = 0; k < depth; k++) {
        vec right[COLS];
        for (int j = 0; j < COLS; j++) right[j] = load(b + k * ldb + j * LANES);
        for (int i = 0; i < ROWS; i++) {
            vec left = splat(a[i * lda + k]);
            for (int j = 0; j < COLS; j++) acc[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) store(c + i * ldc + j * LANES, acc[i][j]);
}

template <int COLS>
inline void gemm_rows(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int rows, int depth, bool add) {
    int i = 0;
    for (; i + 6 <= rows; i += 6) gemm_tile<6, COLS>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, depth, add);
    for (; i < rows; i++) gemm_tile<1, COLS>(a + i * lda, lda, b, ldb, c + i * ldc, ldc, depth, add);
}

inline void gemm(const float* a, int lda, const float* b, int ldb, float* c, int ldc, int rows, int depth, int cols, bool add) {
    int j = 0;
    for (; j + 4 * LANES <= cols; j += 4 * LANES) gemm_rows<4>(a, lda, b + j, ldb, c + j, ldc, rows, depth, add);
    for (; j < cols; j += LANES) gemm_rows<1>(a, lda, b + j, ldb, c + j, ldc, rows, depth, add);
}

template <typename T>
struct Problem {
    const T *q, *k_pool, *v_pool;
    T* out;
    const int32_t* req_to_token;
    int64_t row_stride;
    const int64_t* req_pool_indices;
    const int32_t *seq_lens, *extend_lens;
    int64_t q_stride;  // elements between the queries of two tokens
    int heads, kv_heads, dim;
    float scale;
    int window;  // positions that a query sees, itself included; 0 for all
};

struct Task { int row, kv_head, first_token, first_query, num_queries; };

struct Scratch {
    float q[QUERY_BLOCK * 16 * MAX_DIM];
    float keys[MAX_DIM * BLOCK];     // transposed: [dim][BLOCK]
    float values[BLOCK * MAX_DIM];
    float scores[QUERY_BLOCK * 16 * BLOCK];
    float acc[QUERY_BLOCK * 16 * MAX_DIM];
    float peak[QUERY_BLOCK * 16], total[QUERY_BLOCK * 16];
};

// Scores of one block become probabilities relative to the running peak; acc and total are rescaled to match.
inline void softmax_block(Scratch& s, int rows, int group, int dim, int first_position, int width, int first_query_position, int window) {
    for (int m = 0; m < rows; m++) {
        float* scores = s.scores + m * BLOCK;
        int last = first_query_position + m / group;  // the query's own position
        int end = std::min(width, last - first_position + 1);
        int begin = window ? std::max(0, last - window + 1 - first_position) : 0;
        if (begin >= end) {
            std::memset(scores, 0, sizeof(float) * BLOCK);
            continue;
        }
        for (int j = 0; j < begin; j++) scores[j] = -1e30f;
        for (int j = end; j < BLOCK; j++) scores[j] = -1e30f;
        vec top = load(scores);
        for (int j = LANES; j < BLOCK; j += LANES) {
            vec x = load(scores + j);
            top = x > top ? x : top;
        }
        float peak = s.peak[m];
        for (int i = 0; i < LANES; i++) peak = std::max(peak, top[i]);
        vec sums = {};
        for (int j = 0; j < BLOCK; j += LANES) {
            vec p = exp_nonpositive(load(scores + j) - peak);
            store(scores + j, p);
            sums += p;
        }
        if (peak > s.peak[m]) {
            float shrink = s.total[m] == 0.0f ? 0.0f : exp_nonpositive(splat(s.peak[m] - peak))[0];
            s.total[m] *= shrink;
            for (int d = 0; d < dim; d += LANES) store(s.acc + m * dim + d, load(s.acc + m * dim + d) * shrink);
            s.peak[m] = peak;
        }
        s.total[m] += sum(sums);
    }
}

template <typename T>
void run_task(const Problem<T>& p, const Task& t, Scratch& s) {
    const int group = p.heads / p.kv_heads, dim = p.dim, rows = group * t.num_queries;
    const int64_t slot_stride = int64_t(p.kv_heads) * dim;
    const int32_t* slots = p.req_to_token + p.req_pool_indices[t.row] * p.row_stride;
    const int prefix = p.seq_lens[t.row] - p.extend_lens[t.row];
    const int first_query_position = prefix + t.first_query;
    const int context = first_query_position + t.num_queries;
    const int begin = p.window ? std::max(0, first_query_position - p.window + 1) / BLOCK * BLOCK : 0;

    for (int m = 0; m < rows; m++) {
        int token = t.first_token + t.first_query + m / group, head = t.kv_head * group + m % group;
        const T* q = p.q + token * p.q_stride + head * dim;
        for (int d = 0; d < dim; d += LANES) store(s.q + m * dim + d, load(q + d) * p.scale);
        s.peak[m] = -1e29f;
        s.total[m] = 0.0f;
    }
    std::memset(s.acc, 0, sizeof(float) * rows * dim);

    for (int first = begin; first < context; first += BLOCK) {
        const int width = std::min(BLOCK, context - first);
        const T* k = p.k_pool + t.kv_head * dim;
        const T* v = p.v_pool + t.kv_head * dim;
        if (rows <= DOT_ROWS) {
            for (int j = 0; j < width; j++) {
                const T* key = k + slots[first + j] * slot_stride;
                vec acc[DOT_ROWS] = {};
                for (int d = 0; d < dim; d += LANES) {
                    vec x = load(key + d);
                    for (int m = 0; m < rows; m++) acc[m] += x * load(s.q + m * dim + d);
                }
                for (int m = 0; m < rows; m++) s.scores[m * BLOCK + j] = sum(acc[m]);
            }
            softmax_block(s, rows, group, dim, first, width, first_query_position, p.window);
            for (int d = 0; d < dim; d += LANES) {
                vec acc[DOT_ROWS];
                for (int m = 0; m < rows; m++) acc[m] = load(s.acc + m * dim + d);
                for (int j = 0; j < width; j++) {
                    vec x = load(v + slots[first + j] * slot_stride + d);
                    for (int m = 0; m < rows; m++) acc[m] += x * s.scores[m * BLOCK + j];
                }
                for (int m = 0; m < rows; m++) store(s.acc + m * dim + d, acc[m]);
            }
        } else {
            for (int j = 0; j < BLOCK; j++) {
                const int slot = slots[first + std::min(j, width - 1)];
                const T *key = k + slot * slot_stride, *value = v + slot * slot_stride;
                for (int d = 0; d < dim; d++) s.keys[d * BLOCK + j] = load1(key + d);
                for (int d = 0; d < dim; d += LANES) store(s.values + j * dim + d, load(value + d));
            }
            gemm(s.q, dim, s.keys, BLOCK, s.scores, BLOCK, rows, dim, BLOCK, false);
            softmax_block(s, rows, group, dim, first, width, first_query_position, p.window);
            gemm(s.scores, BLOCK, s.values, dim, s.acc, dim, rows, width, dim, true);
        }
    }
    for (int m = 0; m < rows; m++) {
        int token = t.first_token + t.first_query + m / group, head = t.kv_head * group + m % group;
        T* out = p.out + (int64_t(token) * p.heads + head) * dim;
        float inverse = 1.0f / s.total[m];
        for (int d = 0; d < dim; d += LANES) store(out + d, load(s.acc + m * dim + d) * inverse);
    }
}

template <typename T>
void attend(const Problem<T>& p, const Task* tasks, int num_tasks) {
#pragma omp parallel
    {
        static thread_local Scratch* scratch = new Scratch;  // one for each pool thread, for the life of the process
#pragma omp for schedule(dynamic)
        for (int i = 0; i < num_tasks; i++) run_task(p, tasks[i], *scratch);
    }
}

template <typename T>
void store_rows(const T* k, const T* v, int64_t k_stride, int64_t v_stride, T* k_pool, T* v_pool, const int64_t* slots, int tokens, int width) {
    for (int i = 0; i < tokens; i++) {
        std::memcpy(k_pool + slots[i] * width, k + i * k_stride, sizeof(T) * width);
        std::memcpy(v_pool + slots[i] * width, v + i * v_stride, sizeof(T) * width);
    }
}

template <typename T>
void entry(const void* q, const void* k, const void* v, const int64_t* strides, void* k_pool, void* v_pool, void* out,
           const int32_t* req_to_token, int64_t row_stride, const int64_t* req_pool_indices, const int32_t* seq_lens,
           const int32_t* extend_lens, const int64_t* out_cache_loc, int tokens, const int32_t* tasks, int num_tasks,
           const int32_t* shape, float scale, int window) {
    const int heads = shape[0], kv_heads = shape[1], dim = shape[2];
    store_rows<T>(static_cast<const T*>(k), static_cast<const T*>(v), strides[1], strides[2], static_cast<T*>(k_pool),
                  static_cast<T*>(v_pool), out_cache_loc, tokens, kv_heads * dim);
    Problem<T> problem{static_cast<const T*>(q), static_cast<const T*>(k_pool), static_cast<const T*>(v_pool),
                       static_cast<T*>(out), req_to_token, row_stride, req_pool_indices, seq_lens, extend_lens,
                       strides[0], heads, kv_heads, dim, scale, window};
    attend(problem, reinterpret_cast<const Task*>(tasks), num_tasks);
}

}  // namespace

extern "C" {
// Limits that the caller plans with.
int radixrt_query_block() { return QUERY_BLOCK; }
int radixrt_max_dim() { return MAX_DIM; }

#define RADIXRT_ENTRY(NAME, TYPE)                                                                                       \
    void NAME(const void* q, const void* k, const void* v, const int64_t* strides, void* k_pool, void* v_pool, void* out, \
              const int32_t* req_to_token, int64_t row_stride, const int64_t* req_pool_indices, const int32_t* seq_lens, \
              const int32_t* extend_lens, const int64_t* out_cache_loc, int tokens, const int32_t* tasks, int num_tasks, \
              const int32_t* shape, float scale, int window) {                                                          \
        entry<TYPE>(q, k, v, strides, k_pool, v_pool, out, req_to_token, row_stride, req_pool_indices, seq_lens,         \
                    extend_lens, out_cache_loc, tokens, tasks, num_tasks, shape, scale, window);                         \
    }
RADIXRT_ENTRY(radixrt_attend_bf16, bf16)
RADIXRT_ENTRY(radixrt_attend_f32, float)
}
