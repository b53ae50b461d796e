// Runs a list of recorded calls, in order.

#include <cstdint>

namespace {

constexpr int MAX_ARGS = 31;

struct Call {
    void (*run)(const int64_t*);
    int64_t args[MAX_ARGS];
};

}  // namespace

extern "C" {
int radixrt_replay_max_args() { return MAX_ARGS; }

void radixrt_replay(const Call* calls, int64_t count) {
    for (int64_t i = 0; i < count; i++) calls[i].run(calls[i].args);
}
}
