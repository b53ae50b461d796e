// Results of a linear layer whose weight lies in panels of 32 output features (gemm_tiles.h, code_panels.h).

#pragma once

#include "vec.h"

namespace radixrt {

// Rows of results, from those of one panel on. A gated weight has sixteen features of gate and the same ones of up in a
// panel, of which the results are silu(gate) * up: the features themselves are never written.
struct Results {
    float* out;
    int64_t stride;  // from a row to the next
    bool gated;

    // Results of a panel.
    int64_t width() const { return gated ? LANES : 2 * LANES; }

    Results at(int64_t row, int64_t panel) const { return {out + row * stride + panel * width(), stride, gated}; }

    // The features of a row and a panel, counted from the first ones here.
    void store(int64_t row, int64_t panel, vec low, vec high) const {
        float* to = out + row * stride + panel * width();
        radixrt::store(to, gated ? silu_and_mul(low, high) : low);
        if (!gated) radixrt::store(to + LANES, high);
    }
};

}  // namespace radixrt
