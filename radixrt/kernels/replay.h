// Calls of kernels from a list: a step that is the same each time but for some arguments runs without the interpreter.
//
// A kernel KERNEL that returns nothing becomes callable by RADIXRT_REPLAY(KERNEL), which defines KERNEL_replay.

#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace radixrt {

template <typename T>
inline T unpack(int64_t bits) {  // a pointer, integer or float in the low bytes
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <auto KERNEL>
struct Replay;

template <typename... A, void (*KERNEL)(A...)>
struct Replay<KERNEL> {
    static void run(const int64_t* args) { call(args, std::index_sequence_for<A...>{}); }

  private:
    template <std::size_t... I>
    static void call(const int64_t* args, std::index_sequence<I...>) {
        KERNEL(unpack<A>(args[I])...);
    }
};

}  // namespace radixrt

#define RADIXRT_REPLAY(KERNEL) \
    extern "C" void KERNEL##_replay(const int64_t* args) { radixrt::Replay<&KERNEL>::run(args); }
