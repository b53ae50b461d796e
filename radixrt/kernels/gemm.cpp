// Linear layers with bfloat16 weights and float32 results: x W^T, with x rounded to bfloat16 and sums in float32.
//
// Threads take some panels of the weight (gemm_tiles.h) at a time, which stay in the L2 cache while all rows of a block pass
// over them, so that neighbouring results are written soon after one another.

#include "buffer.h"
#include "gemm_tiles.h"
#include "replay.h"
#include "threads.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)

namespace {

using namespace radixrt;

constexpr int64_t PANELS_BYTES = 1 << 18;  // of panels in the L2 cache
constexpr int64_t TOGETHER = 96;           // rows that pass over them before the next rows do
constexpr int64_t SERIAL = 1 << 15;        // numbers of x that one thread rounds sooner than several meet

void multiply(const float* x, const uint16_t* panels, int64_t rows, int64_t n, int64_t k, const Results& results) {
    static thread_local Buffer<uint16_t> scratch;  // the calling thread's, for the life of the process
    uint16_t* rounded = scratch.resize((rows + 31) / 32 * 32 * k);
    if (rows * k <= SERIAL)
        round_to_bfloat16(x, rounded, rows * k);
    else
        parallel_ranges(rows, rows, [&](int64_t begin, int64_t end) {
            round_to_bfloat16(x + begin * k, rounded + begin * k, (end - begin) * k);
        });
    parallel_ranges(n / COLS, PANELS_BYTES / (2 * COLS * k), [&](int64_t begin, int64_t end) {
        const Tiles tiles;
        for (int64_t first = 0; first < rows; first += TOGETHER)
            tiles.multiply(rounded + first * k, std::min(TOGETHER, rows - first), k, panels + begin * COLS * k,
                           end - begin, results.at(first, begin));
    }, rows <= STREAM_ROWS ? STREAMS - 1 : 1);
}

}  // namespace

extern "C" {
int radixrt_gemm_cols() { return COLS; }
int radixrt_gemm_depth() { return DEPTH; }

// weight [n][k] -> panels; n is a multiple of COLS, k of DEPTH.
void radixrt_gemm_pack(const uint16_t* weight, uint16_t* panels, int64_t n, int64_t k, int gated) {
    parallel(n / COLS, [&](int64_t panel) {
        uint16_t* to = panels + panel * COLS * k;
        for (int64_t d = 0; d < k; d += 2)
            for (int64_t column = 0; column < COLS; column++, to += 2) {
                const int64_t up = column / LANES;
                const int64_t row = gated ? panel * LANES + column % LANES + up * (n / 2) : panel * COLS + column;
                to[0] = weight[row * k + d];
                to[1] = weight[row * k + d + 1];
            }
    });
}

// x [rows][k]; out [rows][n], or [rows][n / 2] if gated.
void radixrt_gemm(const float* x, const uint16_t* panels, float* out, int64_t rows, int64_t n, int64_t k, int gated) {
    const Results results{out, gated ? n / 2 : n, gated != 0};
    const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * rows / blocks, height = (block + 1) * rows / blocks - first;
        multiply(x + first * k, panels, height, n, k, results.at(first, 0));
    }
}
}

#else

extern "C" {
int radixrt_gemm_cols() { return 0; }  // no kernel for this processor
int radixrt_gemm_depth() { return 0; }
void radixrt_gemm_pack(const uint16_t*, uint16_t*, int64_t, int64_t, int) {}
void radixrt_gemm(const float*, const uint16_t*, float*, int64_t, int64_t, int64_t, int) {}
}

#endif

RADIXRT_REPLAY(radixrt_gemm)
