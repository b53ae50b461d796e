// Threads of the kernels: a loop over pieces of work, which the threads of one pool take one by one.
//
// A thread takes its next piece from a counter, so that a thread without a core delays the end of a loop by the piece
// that it holds, and by no other one. Results do not depend on which thread computes a piece: a loop computes the same
// bits on any number of threads.

#pragma once

#include <algorithm>
#include <cstdint>

namespace radixrt {

// Calls run(body, piece) for each piece in [0, pieces), and returns when all calls have returned. The calling thread is
// one of the threads. Inside of a piece, and while another thread of the process runs a loop, all calls are made by the
// calling thread.
void run_pieces(void (*run)(const void* body, int64_t piece), const void* body, int64_t pieces);

// Most threads of a loop: pieces should be several times as many.
int64_t max_threads();

// body(piece) for each piece in [0, pieces).
template <typename Body>
inline void parallel(int64_t pieces, const Body& body) {
    run_pieces([](const void* b, int64_t piece) { (*static_cast<const Body*>(b))(piece); }, &body, pieces);
}

// body(begin, end) for ranges that cover [0, count), each of at most `most` items, and of at least `least` items unless
// there are too few of them for all threads.
template <typename Body>
inline void parallel_ranges(int64_t count, int64_t most, const Body& body, int64_t least = 1) {
    constexpr int64_t PIECES = 6;  // for each thread: the last piece keeps a thread waiting for a twelfth of the loop
    const int64_t threads = max_threads();
    const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    int64_t pieces = threads == 1 ? 1 : std::min(PIECES * threads, count / least);
    pieces = std::max(pieces, quotient(count, std::max<int64_t>(most, 1)));
    pieces = std::min(count, quotient(pieces, threads) * threads);  // threads that are equally fast end together
    parallel(pieces, [&](int64_t piece) { body(piece * count / pieces, (piece + 1) * count / pieces); });
}

}  // namespace radixrt
