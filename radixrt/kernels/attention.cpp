// Causal attention over a paged KV pool, read in place: no row's context is ever copied.
//
// A task is one row, some of its kv heads and a block of its queries; the `group` query heads that share a kv head are
// computed together, so each key and value is read once for all of them. A decode row's task takes all kv heads, whose
// keys lie side by side in a slot.
//
// A task of few queries computes each SPLIT positions by themselves, and folds these results from the first to the last
// (Flash-Decoding, https://crfm.stanford.edu/2023/10/12/flashdecoding.html). Where there are too few tasks for all
// threads, a task is divided into pieces of some splits each. Splits depend on positions alone, so that a row has the
// same bits however its task is divided.
//
// Decode rows that share parts of their context go through these together: a group task takes one kv head of several
// rows, goes through each shared part once for the queries of the rows that share it, then through each row's own. The
// online softmax carries each query from one to the next, so nothing has to be merged afterwards. Softmax is online over
// blocks of BLOCK positions (Milakov and Gimelshein, arXiv 1805.02867). Queries, outputs, new keys and values and all
// arithmetic are float32, whatever the pool holds.

#include <algorithm>
#include <atomic>
#include <vector>

#include "buffer.h"
#include "gemm.h"
#include "replay.h"
#include "threads.h"
#include "vec.h"

namespace {

using namespace radixrt;

constexpr int BLOCK = 64;          // positions of the context handled at once
constexpr int QUERY_BLOCK = 64;    // queries of one row in a task
constexpr int DOT_ROWS = 8;        // up to this many (query, head) rows the dot-product path is used
constexpr int SPLIT = 2 * BLOCK;   // positions whose result a task of the dot-product path folds into that of the earlier ones
constexpr int PIECES = 4;          // for each thread, at most, of tasks that are divided
constexpr int MAX_DIM = 256;

struct Segment;

template <typename T>
struct Problem {
    const float* q;
    const T *k_pool, *v_pool;
    float* out;
    const int32_t* req_to_token;
    int64_t row_stride;
    const int64_t* req_pool_indices;
    const int32_t *seq_lens, *extend_lens;
    int64_t q_stride;  // elements between the queries of two tokens
    int heads, kv_heads, dim;
    float scale;
    int window;  // positions that a query sees, itself included; 0 for all
    const Segment* segments;     // of all groups
    const int32_t* rows;         // of all groups
    const int32_t* first_token;  // of each row in the batch
    const float* sinks;          // for each query head, a score whose key has no value; null for none
};

struct Task { int row, first_head, num_heads, first_token, first_query, num_queries; };

// Positions [start, start + length) hold the same slots for some rows of a group: from its row number `first` on.
struct Segment { int start, length, first, num_rows; };

// Rows rows[first .. first + num_rows), each with one query. The segments of a row are disjoint, in order, and begin at 0.
struct Group { int first, num_rows, head, first_segment, num_segments; };

// Of some query rows, over some positions: weighted values [rows][dim], the largest score, and the sum of the weights,
// which are relative to the largest score.
struct Sums {
    float *acc, *peak, *total;

    static int64_t size(int rows, int dim) { return int64_t(rows) * (dim + 2); }
    static Sums at(float* memory, int rows, int dim) {
        return {memory, memory + rows * dim, memory + rows * (dim + 1)};
    }
};

struct Scratch {
    float q[QUERY_BLOCK * 16 * MAX_DIM];
    float keys[MAX_DIM * BLOCK];     // transposed: [dim][BLOCK]
    float values[BLOCK * MAX_DIM];
    float scores[QUERY_BLOCK * 16 * BLOCK];
    float acc[QUERY_BLOCK * 16 * MAX_DIM];
    float peak[QUERY_BLOCK * 16], total[QUERY_BLOCK * 16];
    float earlier[QUERY_BLOCK * 16 * (MAX_DIM + 2)];  // sums of the splits before the one that is computed
    int shared[QUERY_BLOCK * 16];    // positions of each row of a group that its segments cover

    Sums sums() { return {acc, peak, total}; }
};

// Scores of one block become probabilities relative to the running peak; acc and total, from row `base` on, are rescaled
// to match.
__attribute__((noinline)) void softmax_block(Scratch& s, int base, int rows, int group, int dim, int first_position, int width, int first_query_position, int window) {
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
        const int at = base + m;
        float peak = s.peak[at];
        for (int i = 0; i < LANES; i++) peak = std::max(peak, top[i]);
        vec sums = {};
        for (int j = 0; j < BLOCK; j += LANES) {
            vec p = exp_nonpositive(load(scores + j) - peak);
            store(scores + j, p);
            sums += p;
        }
        if (peak > s.peak[at]) {
            float shrink = s.total[at] == 0.0f ? 0.0f : exp_nonpositive(splat(s.peak[at] - peak))[0];
            s.total[at] *= shrink;
            for (int d = 0; d < dim; d += LANES) store(s.acc + at * dim + d, load(s.acc + at * dim + d) * shrink);
            s.peak[at] = peak;
        }
        s.total[at] += sum(sums);
    }
}

// What the functions below need of one task.
template <typename T>
struct Row {
    const Problem<T>& p;
    const Task& t;
    Scratch& s;
    const int group, dim, rows;  // rows: query rows of one kv head
    const int64_t slot_stride;
    const int32_t* slots;
    const int first_query_position, begin, context;  // the positions [begin, context) are seen by a query

    Row(const Problem<T>& p, const Task& t, Scratch& s)
        : p(p), t(t), s(s), group(p.heads / p.kv_heads), dim(p.dim), rows(group * t.num_queries),
          slot_stride(int64_t(p.kv_heads) * p.dim), slots(p.req_to_token + p.req_pool_indices[t.row] * p.row_stride),
          first_query_position(p.seq_lens[t.row] - p.extend_lens[t.row] + t.first_query),
          begin(p.window ? std::max(0, first_query_position - p.window + 1) / BLOCK * BLOCK : 0),
          context(first_query_position + t.num_queries) {}

    int first_split() const { return begin / SPLIT; }
    int end_split() const { return (context + SPLIT - 1) / SPLIT; }

    int64_t query(int head, int m) const {  // index of a query row among [tokens, heads]
        return int64_t(t.first_token + t.first_query + m / group) * p.heads + (t.first_head + head) * group + m % group;
    }
};

// first: the sums are to include the sinks, as those over a query's first positions do.
template <typename T>
void clear_sums(const Row<T>& r, int base, bool first) {
    const float* sinks = first ? r.p.sinks : nullptr;
    for (int h = 0; h < r.t.num_heads; h++)
        for (int m = 0; m < r.rows; m++) {
            const int at = base + h * r.rows + m;
            r.s.peak[at] = sinks ? sinks[r.query(h, m) % r.p.heads] : -1e29f;
            r.s.total[at] = sinks ? 1.0f : 0.0f;
        }
    std::memset(r.s.acc + base * r.dim, 0, sizeof(float) * r.t.num_heads * r.rows * r.dim);
}

// Query rows of one row of the batch, from `base` on in the scratch, with sums over no position.
template <typename T>
void load_queries(const Row<T>& r, int base) {
    for (int h = 0; h < r.t.num_heads; h++)
        for (int m = 0; m < r.rows; m++) {
            const int64_t index = r.query(h, m);
            const float* q = r.p.q + index / r.p.heads * r.p.q_stride + index % r.p.heads * r.dim;
            const int at = base + h * r.rows + m;
            for (int d = 0; d < r.dim; d += LANES) store(r.s.q + at * r.dim + d, load(q + d) * r.p.scale);
        }
    clear_sums(r, base, true);
}

template <typename T>
void store_outputs(const Row<T>& r, int base, const Sums& sums) {
    for (int h = 0; h < r.t.num_heads; h++)
        for (int m = 0; m < r.rows; m++) {
            const int at = base + h * r.rows + m;
            float* out = r.p.out + r.query(h, m) * r.dim;
            const float inverse = 1.0f / sums.total[at];
            for (int d = 0; d < r.dim; d += LANES) store(out + d, load(sums.acc + at * r.dim + d) * inverse);
        }
}

void copy_sums(const Sums& from, const Sums& to, int rows, int dim) {
    std::memcpy(to.acc, from.acc, sizeof(float) * rows * dim);
    std::memcpy(to.peak, from.peak, sizeof(float) * rows);
    std::memcpy(to.total, from.total, sizeof(float) * rows);
}

// sums, over some positions, get those over the next positions. Never inlined: it has the same bits wherever it is called.
__attribute__((noinline)) void fold_sums(const Sums& sums, const Sums& next, int rows, int dim) {
    for (int m = 0; m < rows; m++) {
        const float peak = std::max(sums.peak[m], next.peak[m]);
        const vec keep = exp_nonpositive(splat(sums.peak[m] - peak)), add = exp_nonpositive(splat(next.peak[m] - peak));
        sums.peak[m] = peak;
        sums.total[m] = sums.total[m] * keep[0] + next.total[m] * add[0];
        float* acc = sums.acc + m * dim;
        for (int d = 0; d < dim; d += LANES) store(acc + d, load(acc + d) * keep + load(next.acc + m * dim + d) * add);
    }
}

// Reads one byte of every cache line of a task's first block, in order. Nothing but loads stand in this loop, so dozens of
// them wait for memory at once.
template <typename T>
inline void touch(const Row<T>& r, int first, int width) {
    const int64_t offset = int64_t(r.t.first_head) * r.dim, bytes = int64_t(r.t.num_heads) * r.dim * sizeof(T);
    for (const T* pool : {r.p.k_pool, r.p.v_pool})
        for (int j = first; j < first + width; j++) {
            const volatile char* slot = reinterpret_cast<const char*>(pool + r.slots[j] * r.slot_stride + offset);
            for (int64_t at = 0; at < bytes; at += 64) (void)slot[at];
        }
}

// Asks for the keys and values of a kv head at some positions from `first` on, which the arithmetic of the positions
// before does not wait for. The L2 cache has room for those of all heads. Always inlined: GCC 12 omits calls of a function
// that has no other effect.
template <typename T>
__attribute__((always_inline)) inline void fetch(const Row<T>& r, const T* k, const T* v, int first, int count) {
    const int end = std::min(first + count, r.context);
    for (int j = first; j < end; j++) {
        const int64_t slot = r.slots[j] * r.slot_stride;
        for (int d = 0; d < r.dim; d += 64 / sizeof(T)) {
            __builtin_prefetch(k + slot + d, 0, 2);
            __builtin_prefetch(v + slot + d, 0, 2);
        }
    }
}

// Scores of LANES positions from first + j on, for ROWS query rows; positions past the block's end repeat its last one.
template <typename T, int ROWS>
inline void dot_scores(const Row<T>& r, int base, const T* k, int first, int j, int width) {
    constexpr int KEYS = 4;  // at once: ROWS * KEYS sums stay in registers
    vec parts[ROWS][LANES / KEYS];
    for (int g = 0; g < LANES / KEYS; g++) {
        const T* keys[KEYS];
        for (int i = 0; i < KEYS; i++) keys[i] = k + r.slots[first + std::min(j + g * KEYS + i, width - 1)] * r.slot_stride;
        vec acc[ROWS][KEYS] = {};
        for (int d = 0; d < r.dim; d += LANES) {
            vec x[KEYS];
            for (int i = 0; i < KEYS; i++) x[i] = load(keys[i] + d);
            for (int m = 0; m < ROWS; m++) {
                const vec q = load(r.s.q + (base + m) * r.dim + d);
                for (int i = 0; i < KEYS; i++) acc[m][i] += x[i] * q;
            }
        }
        for (int m = 0; m < ROWS; m++)
            parts[m][g] = merge<2>(merge<1>(acc[m][0], acc[m][1]), merge<1>(acc[m][2], acc[m][3]));
    }
    for (int m = 0; m < ROWS; m++)
        store(r.s.scores + m * BLOCK + j,
              merge<4>(merge<3>(parts[m][0], parts[m][1]), merge<3>(parts[m][2], parts[m][3])));
}

// acc[m] += probabilities[m] . values, VECS vectors of the head's dims from d on.
template <typename T, int ROWS, int VECS>
inline void weigh_values(const Row<T>& r, int base, const T* v, int first, int width, int d) {
    vec acc[ROWS][VECS];
    for (int m = 0; m < ROWS; m++)
        for (int i = 0; i < VECS; i++) acc[m][i] = load(r.s.acc + (base + m) * r.dim + d + i * LANES);
    for (int j = 0; j < width; j++) {
        const T* value = v + r.slots[first + j] * r.slot_stride + d;
        vec x[VECS];
        for (int i = 0; i < VECS; i++) x[i] = load(value + i * LANES);
        for (int m = 0; m < ROWS; m++) {
            const vec p = splat(r.s.scores[m * BLOCK + j]);
            for (int i = 0; i < VECS; i++) acc[m][i] += x[i] * p;
        }
    }
    for (int m = 0; m < ROWS; m++)
        for (int i = 0; i < VECS; i++) store(r.s.acc + (base + m) * r.dim + d + i * LANES, acc[m][i]);
}

// Few query rows, ROWS for each kv head: every key and value is loaded once and used from registers.
template <typename T, int ROWS>
void dot_block(const Row<T>& r, int base, int head, int first, int width) {
    constexpr int VECS = ROWS <= 5 ? 4 : 2;
    const T* k = r.p.k_pool + int64_t(r.t.first_head + head) * r.dim;
    const T* v = r.p.v_pool + int64_t(r.t.first_head + head) * r.dim;
    for (int j = 0; j < width; j += LANES) {
        fetch(r, k, v, first + BLOCK + j, LANES);
        dot_scores<T, ROWS>(r, base, k, first, j, width);
    }
    softmax_block(r.s, base, ROWS, r.group, r.dim, first, width, r.first_query_position, r.p.window);
    int d = 0;
    for (; d + VECS * LANES <= r.dim; d += VECS * LANES) weigh_values<T, ROWS, VECS>(r, base, v, first, width, d);
    for (; d < r.dim; d += LANES) weigh_values<T, ROWS, 1>(r, base, v, first, width, d);
}

template <typename T>
__attribute__((noinline)) void dot_block(const Row<T>& r, int base, int head, int first, int width) {
    switch (r.rows) {
        case 1: return dot_block<T, 1>(r, base, head, first, width);
        case 2: return dot_block<T, 2>(r, base, head, first, width);
        case 3: return dot_block<T, 3>(r, base, head, first, width);
        case 4: return dot_block<T, 4>(r, base, head, first, width);
        case 5: return dot_block<T, 5>(r, base, head, first, width);
        case 6: return dot_block<T, 6>(r, base, head, first, width);
        case 7: return dot_block<T, 7>(r, base, head, first, width);
        default: return dot_block<T, 8>(r, base, head, first, width);
    }
}

// Many query rows: keys and values of the block are unpacked once, then two small matrix products.
// `rows` query rows from `base` on, the first of which is at query_position.
template <typename T>
__attribute__((noinline)) void gemm_block(const Row<T>& r, int base, int rows, int head, int first, int width, int query_position) {
    Scratch& s = r.s;
    const int dim = r.dim;
    const int64_t offset = int64_t(r.t.first_head + head) * dim;
    if (first == r.begin) touch(r, first, width);
    for (int j = 0; j < BLOCK; j += LANES) {
        fetch(r, r.p.k_pool + offset, r.p.v_pool + offset, first + BLOCK + j, LANES);
        int64_t slots[LANES];
        for (int i = 0; i < LANES; i++)
            slots[i] = r.slots[first + std::min(j + i, width - 1)] * r.slot_stride + offset;
        for (int d = 0; d < dim; d += LANES) {
            vec keys[LANES];
            for (int i = 0; i < LANES; i++) keys[i] = load(r.p.k_pool + slots[i] + d);
            transpose(keys);
            for (int i = 0; i < LANES; i++) store(s.keys + (d + i) * BLOCK + j, keys[i]);
            for (int i = 0; i < LANES; i++) store(s.values + (j + i) * dim + d, load(r.p.v_pool + slots[i] + d));
        }
    }
    gemm(s.q + base * dim, dim, s.keys, BLOCK, s.scores, BLOCK, rows, dim, BLOCK, false);
    softmax_block(s, base, rows, r.group, dim, first, width, query_position, r.p.window);
    gemm(s.scores, BLOCK, s.values, dim, s.acc + base * dim, dim, rows, width, dim, true);
}

// Many queries.
template <typename T>
void run_gemm_task(const Row<T>& r) {
    load_queries(r, 0);
    for (int first = r.begin; first < r.context; first += BLOCK)
        for (int h = 0; h < r.t.num_heads; h++)
            gemm_block(r, h * r.rows, r.rows, h, first, std::min(BLOCK, r.context - first), r.first_query_position);
    store_outputs(r, 0, r.s.sums());
}

// Few queries and the splits [begin, end) of their positions. Calls done(split) after each, with its sums in the scratch.
template <typename T, typename Done>
void run_splits(const Row<T>& r, int begin, int end, const Done& done) {
    load_queries(r, 0);
    const int start = std::max(r.begin, begin * SPLIT);
    touch(r, start, std::min(BLOCK, r.context - start));
    for (int split = begin; split < end; split++) {
        int first = std::max(r.begin, split * SPLIT);
        const int stop = std::min(r.context, (split + 1) * SPLIT);
        clear_sums(r, 0, first == r.begin);
        for (; first < stop; first += BLOCK)
            for (int h = 0; h < r.t.num_heads; h++)
                dot_block(r, h * r.rows, h, first, std::min(BLOCK, stop - first));
        done(split);
    }
}

template <typename T>
void run_dot_task(const Row<T>& r) {
    const int begin = r.first_split(), end = r.end_split(), rows = r.t.num_heads * r.rows;
    const Sums now = r.s.sums(), earlier = Sums::at(r.s.earlier, rows, r.dim);
    run_splits(r, begin, end, [&](int split) {
        if (begin + 1 == end) return;
        if (split == begin) copy_sums(now, earlier, rows, r.dim);
        else fold_sums(earlier, now, rows, r.dim);
    });
    store_outputs(r, 0, begin + 1 == end ? now : earlier);
}

template <typename T>
void run_group(const Problem<T>& p, const Group& g, Scratch& s) {
    const int group = p.heads / p.kv_heads;
    auto task = [&](int i) {
        const int row = p.rows[g.first + i];
        return Task{row, g.head, 1, p.first_token[row], 0, 1};
    };
    for (int i = 0; i < g.num_rows; i++) {
        const Task t = task(i);
        load_queries(Row<T>(p, t, s), i * group);
        s.shared[i] = 0;
    }
    for (int j = 0; j < g.num_segments; j++) {
        const Segment& segment = p.segments[g.first_segment + j];
        const int end = segment.start + segment.length;
        const Task leader = task(segment.first);
        const Row<T> shared(p, leader, s);
        for (int first = segment.start; first < end; first += BLOCK)  // every query is behind all of it
            gemm_block(shared, segment.first * group, segment.num_rows * group, 0, first, std::min(BLOCK, end - first), end);
        for (int i = segment.first; i < segment.first + segment.num_rows; i++) s.shared[i] = end;
    }
    for (int i = 0; i < g.num_rows; i++) {
        const Task t = task(i);
        const Row<T> r(p, t, s);
        touch(r, s.shared[i], std::min(BLOCK, r.context - s.shared[i]));
        for (int first = s.shared[i]; first < r.context; first += BLOCK)
            dot_block(r, i * group, 0, first, std::min(BLOCK, r.context - first));
        store_outputs(r, i * group, s.sums());
    }
}

// A whole task, or the splits [begin, end) of one that is divided.
struct Piece {
    int task, division;  // division: -1 for a whole task
    int begin, end;
};

// A task that several pieces compute.
struct Division {
    int left;       // pieces that have not ended; the thread that ends the last one folds the sums of all splits
    int64_t first;  // number of the shared memory that is the first one of these sums
};

// The pieces of a call, which is made by the thread that has them.
struct Pieces {
    std::vector<Piece> all;
    std::vector<Division> divisions;
    Buffer<float> sums;  // of the splits of divided tasks

    // Divides tasks of few queries that take more than their share of the threads' time.
    template <typename T>
    void divide(const Problem<T>& p, const Task* tasks, int num_tasks, Scratch& s) {
        all.clear();
        divisions.clear();
        const auto cost = [](const Row<T>& r) { return int64_t(r.t.num_heads) * r.rows * (r.context - r.begin); };
        const int64_t wanted = max_threads() == 1 ? 1 : PIECES * max_threads();
        int64_t whole = 1, size = 0;
        for (int i = 0; i < num_tasks; i++) whole += cost(Row<T>(p, tasks[i], s));
        for (int i = 0; i < num_tasks; i++) {
            const Row<T> r(p, tasks[i], s);
            const int begin = r.first_split(), splits = r.end_split() - begin;
            const int64_t share = (cost(r) * wanted + whole - 1) / whole;
            const int count = r.rows <= DOT_ROWS ? static_cast<int>(std::min<int64_t>(splits, share)) : 1;
            if (count <= 1) {
                all.push_back({i, -1, 0, 0});
                continue;
            }
            for (int j = 0; j < count; j++)
                all.push_back({i, static_cast<int>(divisions.size()), begin + splits * j / count, begin + splits * (j + 1) / count});
            divisions.push_back({count, size});
            size += splits * Sums::size(r.t.num_heads * r.rows, r.dim);
        }
        sums.resize(size);
    }
};

template <typename T>
void run_piece(const Row<T>& r, const Piece& piece, Division& division, float* memory) {
    const int rows = r.t.num_heads * r.rows, splits = r.end_split() - r.first_split();
    const auto of = [&](int index) {  // from 0 for the task's first split
        return Sums::at(memory + division.first + index * Sums::size(rows, r.dim), rows, r.dim);
    };
    run_splits(r, piece.begin, piece.end,
               [&](int split) { copy_sums(r.s.sums(), of(split - r.first_split()), rows, r.dim); });
    if (__atomic_sub_fetch(&division.left, 1, __ATOMIC_ACQ_REL)) return;
    for (int i = 1; i < splits; i++) fold_sums(of(0), of(i), rows, r.dim);
    store_outputs(r, 0, of(0));
}

Scratch& own_scratch() {
    static thread_local Scratch* scratch = new Scratch;  // one for each thread, for the life of the process
    return *scratch;
}

template <typename T>
void attend(const Problem<T>& p, const Task* tasks, int num_tasks, const Group* groups, int num_groups) {
    static thread_local Pieces own;
    Pieces& pieces = own;  // the calling thread's, for all threads
    pieces.divide(p, tasks, num_tasks, own_scratch());
    parallel(num_groups + static_cast<int64_t>(pieces.all.size()), [&](int64_t i) {
        Scratch& scratch = own_scratch();
        if (i < num_groups) return run_group(p, groups[i], scratch);
        const Piece& piece = pieces.all[i - num_groups];
        const Row<T> r(p, tasks[piece.task], scratch);
        if (piece.division >= 0) run_piece(r, piece, pieces.divisions[piece.division], pieces.sums.data());
        else if (r.rows <= DOT_ROWS) run_dot_task(r);
        else run_gemm_task(r);
    });
}

template <typename T>
void entry(const float* q, int64_t q_stride, const void* k_pool, const void* v_pool, float* out,
           const int32_t* req_to_token, int64_t row_stride, const int64_t* req_pool_indices, const int32_t* seq_lens,
           const int32_t* extend_lens, const int32_t* tasks, int num_tasks, const int32_t* groups, int num_groups,
           const int32_t* segments, const int32_t* rows, const int32_t* first_token, const int32_t* shape, float scale,
           int window, const float* sinks) {
    const int heads = shape[0], kv_heads = shape[1], dim = shape[2];
    Problem<T> problem{q, static_cast<const T*>(k_pool), static_cast<const T*>(v_pool), out, req_to_token, row_stride, req_pool_indices, seq_lens, extend_lens,
                       q_stride, heads, kv_heads, dim, scale, window,
                       reinterpret_cast<const Segment*>(segments), rows, first_token, sinks};
    attend(problem, reinterpret_cast<const Task*>(tasks), num_tasks, reinterpret_cast<const Group*>(groups), num_groups);
}

// New keys and values to their slots of the pool. Strides in elements between tokens; a token has `size` elements.
template <typename T>
void store_slots(const float* k, const float* v, int64_t k_stride, int64_t v_stride, T* k_pool, T* v_pool,
                 const int64_t* slots, int tokens, int size) {
    for (int i = 0; i < tokens; i++)
        for (int d = 0; d < size; d += LANES) {
            store(k_pool + slots[i] * size + d, load(k + i * k_stride + d));
            store(v_pool + slots[i] * size + d, load(v + i * v_stride + d));
        }
}

}  // namespace

extern "C" {
// Limits that the caller plans with.
int radixrt_query_block() { return QUERY_BLOCK; }
int radixrt_max_dim() { return MAX_DIM; }

#define RADIXRT_ENTRIES(SUFFIX, TYPE)                                                                                    \
    void radixrt_attend_##SUFFIX(                                                                                        \
            const float* q, int64_t q_stride, const void* k_pool, const void* v_pool, float* out,                        \
            const int32_t* req_to_token, int64_t row_stride, const int64_t* req_pool_indices, const int32_t* seq_lens,   \
            const int32_t* extend_lens, const int32_t* tasks, int num_tasks, const int32_t* groups, int num_groups,      \
            const int32_t* segments, const int32_t* rows, const int32_t* first_token, const int32_t* shape, float scale, \
            int window, const float* sinks) {                                                                            \
        entry<TYPE>(q, q_stride, k_pool, v_pool, out, req_to_token, row_stride, req_pool_indices, seq_lens, extend_lens, \
                    tasks, num_tasks, groups, num_groups, segments, rows, first_token, shape, scale, window, sinks);     \
    }                                                                                                                    \
    void radixrt_store_##SUFFIX(const float* k, const float* v, int64_t k_stride, int64_t v_stride, void* k_pool,        \
                                void* v_pool, const int64_t* slots, int tokens, int size) {                              \
        store_slots(k, v, k_stride, v_stride, static_cast<TYPE*>(k_pool), static_cast<TYPE*>(v_pool), slots, tokens,     \
                    size);                                                                                               \
    }
RADIXRT_ENTRIES(bf16, bf16)
RADIXRT_ENTRIES(f32, float)
}

RADIXRT_REPLAY(radixrt_attend_bf16)
RADIXRT_REPLAY(radixrt_attend_f32)
RADIXRT_REPLAY(radixrt_store_bf16)
RADIXRT_REPLAY(radixrt_store_f32)
