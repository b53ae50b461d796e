// Linear layers with weights of 8 or 4 bits and float32 results: x W^T, where W = code * scale + offset.
//
// Where the processor multiplies bytes (AVX-512 VNNI, AMX), a row of x becomes integers of 16 bits with one scale, so that
// no number is rounded by more than 2^-16 of the row's largest: in sum less than bfloat16 loses. Sums of products of a
// group are exact. Elsewhere codes are converted to float32, and x is not rounded.
//
// Many rows and a weight with several groups in a row have a third way where there are tile registers: weights are rounded
// to bfloat16 for the GEMM of gemm_tiles.h, which is faster than to scale the sums of each group.
//
// Threads take some panels (code_panels.h) at a time, which stay in the L2 cache while all rows pass over them, so that
// neighbouring results are written soon after one another.

#include <cmath>

#include "gemm_codes_tiles.h"
#include "replay.h"
#include "threads.h"

namespace radixrt::codes {
namespace {

constexpr int64_t ROWS_BYTES = 1 << 19;    // of rows of x in the L2 cache
constexpr int64_t PANELS_BYTES = 1 << 18;  // of panels in the L2 cache, with a byte for each code
constexpr int64_t MIN_ROWS = 128;          // that pass over panels, also where they do not fit
constexpr int64_t SERIAL = 8192;           // numbers of x that one thread converts sooner than several meet
constexpr int TILE_ROWS = 4;

#ifdef RADIXRT_CODES_BYTES
using Rows = DigitRows;
#define RADIXRT_TILE(R, BITS) digit_tile<R, BITS>
#else
using Rows = FloatRows;
#define RADIXRT_TILE(R, BITS) float_tile<R, BITS>
#endif

template <int BITS>
void multiply_block(const Rows& rows, int64_t begin, int64_t end, const Weight& weight, int64_t index, const Results& results) {
    for (int64_t first = begin; first < end; first += TILE_ROWS) {
        const Results to = results.at(first - begin, 0);
        switch (std::min<int64_t>(TILE_ROWS, end - first)) {
            case 1: RADIXRT_TILE(1, BITS)(rows, first, weight, index, to); break;
            case 2: RADIXRT_TILE(2, BITS)(rows, first, weight, index, to); break;
            case 3: RADIXRT_TILE(3, BITS)(rows, first, weight, index, to); break;
            case 4: RADIXRT_TILE(4, BITS)(rows, first, weight, index, to); break;
        }
    }
}

#undef RADIXRT_TILE

// What all threads share of a product.
struct Product {
    const Weight& weight;
    int64_t count;  // rows of x
    float* out;
    Rows& rows;
#ifdef RADIXRT_CODES_TILES
    Buffer<uint16_t>& rounded;  // rows in bfloat16, padded to the depth, where these are multiplied
    bool tiles, in_bfloat16;
#endif

    // Converts a row of x.
    void fill(int64_t row, const float* x) {
#ifdef RADIXRT_CODES_TILES
        if (in_bfloat16) {
            round_row(x, weight, rounded.data() + row * weight.depth());
            return;
        }
#endif
        rows.fill(row, x, weight);
    }

    // Multiplies all rows by a range of panels.
    void multiply(int64_t begin, int64_t end) {
        static thread_local Buffer<uint8_t> scratch;  // of a thread, for the life of the process
        const Results results{out, weight.results(), weight.gated != 0};
        const int64_t whole = std::min(end, results.stride / results.width());  // of the panels without padding
        const int64_t step = block_rows(), at_once = count <= step ? 1 : end - begin;
        for (int64_t chunk = multiply_streams(begin, whole, results), stop; chunk < end; chunk = stop) {
            stop = std::min(end, chunk + at_once);
            unpack(chunk, stop, scratch);
            for (int64_t first = 0; first < count; first += step)
                for (int64_t index = chunk; index < stop; index++) {
                    const int64_t last = std::min(count, first + step);
                    const Results to = results.at(first, index);
                    if (index < whole) {
                        multiply_rows(first, last, index, index - chunk, scratch, to);
                        continue;
                    }
                    float edge[2 * BLOCK * COLS];  // the last panel has features behind the weight's
                    multiply_rows(first, last, index, index - chunk, scratch, {edge, COLS, to.gated});
                    const int64_t left = results.stride - index * to.width();
                    for (int64_t r = 0; r < last - first; r++) std::copy_n(edge + r * COLS, left, to.out + r * to.stride);
                }
        }
    }

    // Panels that a thread takes at a time: they stay in the L2 cache.
    int64_t panels_at_once() const { return PANELS_BYTES / (weight.depth() * COLS); }

    // Panels that a thread should take at least.
    int64_t least_panels() const {
#ifdef RADIXRT_CODES_BYTES
        if (count <= STREAM_ROWS) return STREAMS / count;
#endif
        return 1;
    }

  private:
    int64_t block_rows() const {
#ifdef RADIXRT_CODES_TILES
        if (in_bfloat16) return 2 * BLOCK;
#endif
        return BLOCK;
    }

    // Prepares the codes of some panels for tile registers, where they cannot read them as they are.
    void unpack(int64_t begin, int64_t end, Buffer<uint8_t>& scratch) const {
#ifdef RADIXRT_CODES_TILES
        if (!tiles || (weight.bits == 8 && !in_bfloat16)) return;
        const int64_t size = weight.depth() * COLS * (in_bfloat16 ? 2 : 1);
        scratch.resize((end - begin) * size);
        for (int64_t index = begin; index < end; index++) {
            uint8_t* to = scratch.data() + (index - begin) * size;
            if (in_bfloat16)
                to_bfloat16(Panel(weight, index), reinterpret_cast<uint16_t*>(to));
            else
                unpack_nibbles(Panel(weight, index), to);
        }
#endif
    }

    // Multiplies few rows by panels that are read together, and returns the first panel that is left.
    int64_t multiply_streams(int64_t begin, int64_t end, const Results& results) const {
#ifdef RADIXRT_CODES_BYTES
        if (count == 1) return streams<1>(begin, end, results);
        if (count == 2) return streams<2>(begin, end, results);
        static_assert(STREAM_ROWS == 2);
#endif
        return begin;
    }

#ifdef RADIXRT_CODES_BYTES
    template <int R>
    int64_t streams(int64_t begin, int64_t end, const Results& results) const {
        constexpr int PANELS = STREAMS / R;
        const auto run = weight.bits == 8 ? digit_tile<R, 8, PANELS> : digit_tile<R, 4, PANELS>;
        for (; begin + PANELS <= end; begin += PANELS) run(rows, 0, weight, begin, results.at(0, begin));
        return begin;
    }
#endif

    // At most block_rows() rows by one panel, the `place`-th of those in the scratch memory.
    void multiply_rows(int64_t first, int64_t last, int64_t index, int64_t place, const Buffer<uint8_t>& scratch,
                       const Results& results) const {
#ifdef RADIXRT_CODES_TILES
        const int64_t size = weight.depth() * COLS;
        if (in_bfloat16) {
            const auto* panels = reinterpret_cast<const uint16_t*>(scratch.data()) + place * size;
            multiply_panel_tiles(rounded.data() + first * weight.depth(), last - first, weight.depth(), panels, results);
            return;
        }
        if (tiles) {
            const Panel panel(weight, index);
            const uint8_t* codes = weight.bits == 8 ? panel.codes : scratch.data() + place * size;
            tile_block(rows, first, last - first, panel, codes, results);
            return;
        }
#endif
        const auto run = weight.bits == 8 ? multiply_block<8> : multiply_block<4>;
        run(rows, first, last, weight, index, results);
    }
};

void multiply(const Weight& weight, const float* x, float* out, int64_t count) {
    static thread_local Rows rows;  // the calling thread's, for the life of the process
#ifdef RADIXRT_CODES_TILES
    static thread_local Buffer<uint16_t> rounded;
    const bool whole = weight.groups() == 1, available = TileRegisters::available();
    const bool in_bfloat16 = available && !whole && count >= BFLOAT16_MIN_ROWS;
    const bool fits = whole ? count >= TILES_MIN_ROWS : weight.group % DEPTH == 0 && count >= GROUP_TILES_MIN_ROWS;
    const bool tiles = in_bfloat16 || (available && fits);
    Product product{weight, count, out, rows, rounded, tiles, in_bfloat16};
    if (in_bfloat16)
        rounded.resize((count + 31) / 32 * 32 * weight.depth());
    else
        rows.resize(count, weight);
#else
    Product product{weight, count, out, rows};
    rows.resize(count, weight);
#endif
    const bool serial = count * weight.columns <= SERIAL;
    auto fill = [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; r++) product.fill(r, x + r * weight.columns);
    };
    if (serial)
        fill(0, count);
    else
        parallel_ranges(count, count, fill);
    parallel_ranges(weight.num_panels(), product.panels_at_once(), [&](int64_t begin, int64_t end) {
        const TileRegisters registers;
        product.multiply(begin, end);
    }, product.least_panels());
}

// The weight's feature in a column of a panel; -1 behind the last.
int64_t feature(const Weight& weight, int64_t panel, int64_t column) {
    if (weight.gated) return panel * LANES + column % LANES + column / LANES * (weight.rows / 2);
    const int64_t found = panel * COLS + column;
    return found < weight.rows ? found : -1;
}

void store_number(uint8_t* section, int64_t at, float value, bool half) {
    if (half) {
        const uint16_t narrow = exact_half(value);
        std::memcpy(section + 2 * at, &narrow, 2);
    } else {
        std::memcpy(section + 4 * at, &value, 4);
    }
}

// Pairs of neighbouring codes become pairs that lie four inputs apart.
void pack_nibbles(const uint8_t* from, int64_t bytes, uint8_t* to) {
    for (int64_t first = 0; first < bytes; first += 4, to += 4 * COLS) {
        uint8_t pairs[4] = {};
        std::copy_n(from + first, std::min<int64_t>(4, bytes - first), pairs);
        for (int i = 0; i < 2; i++) {
            to[2 * i] = (pairs[i] & 15) | (pairs[i + 2] & 15) << 4;
            to[2 * i + 1] = pairs[i] >> 4 | (pairs[i + 2] & 240);
        }
    }
}

}  // namespace

extern "C" {
// 1 where x is multiplied as integers, 0 where codes are converted to float32.
int radixrt_codes_integers() {
#ifdef RADIXRT_CODES_BYTES
    return 1;
#else
    return 0;
#endif
}

// Bytes of the panels of a weight, which are aligned to cache lines.
int64_t radixrt_codes_bytes(const Weight* weight) { return weight->num_panels() * weight->panel_bytes(); }

// Fills the panels. codes [rows][columns] as int8, or [rows][columns / 2] of two numbers of 4 bits each, the first one in
// the low half. scales, minima [rows][groups], which are float16 numbers where the weight says so; zeros [rows][groups].
void radixrt_codes_pack(const Weight* packed, const uint8_t* codes, const float* scales, const uint8_t* zeros,
                        const float* minima) {
    const Weight& weight = *packed;
    const int64_t groups = weight.groups(), columns = weight.columns;
    parallel(weight.num_panels(), [&](int64_t index) {
        const Panel panel(weight, index);
        std::memset(panel.codes, 0, weight.panel_bytes());
        for (int64_t column = 0; column < COLS; column++) {
            const int64_t row = feature(weight, index, column);
            if (row < 0) continue;
            const uint8_t* from = codes + row * columns * weight.bits / 8;
            uint8_t* to = panel.codes + 4 * column;
            if (weight.bits == 8)
                for (int64_t k = 0; k < columns; k++) to[k / 4 * 4 * COLS + k % 4] = from[k] ^ 0x80;
            else
                pack_nibbles(from, columns / 2, to);
            for (int64_t g = 0; g < groups; g++) {
                const int64_t place = row * groups + g, at = g * COLS + column;
                store_number(panel.scales, at, scales[place], weight.half);
                if (weight.offsets == ZEROS) panel.offsets[at] = zeros[place];
                if (weight.offsets == MINIMA) store_number(panel.offsets, at, minima[place], weight.half);
            }
        }
    });
}

// x [rows][columns]; out [rows][features], or [rows][features / 2] if gated.
void radixrt_codes_gemm(const Weight* weight, const float* x, float* out, int64_t rows) {
    const int64_t fitting = ROWS_BYTES / (2 * weight->depth()) / (2 * BLOCK) * (2 * BLOCK);
    const int64_t block = std::max(MIN_ROWS, fitting);
    for (int64_t first = 0; first < rows; first += block)
        multiply(*weight, x + first * weight->columns, out + first * weight->results(), std::min(block, rows - first));
}
}

RADIXRT_REPLAY(radixrt_codes_gemm)

}  // namespace radixrt::codes
