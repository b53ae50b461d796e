// How many threads a loop should have, from how late its threads were.
//
// Beside other programs a thread may be without a core while it holds a piece of a loop, and all others wait for it. Where
// they wait for a large part of the time, fewer threads are faster. More threads are tried again after a while: the other
// program may have ended.

#pragma once

#include <algorithm>
#include <cstdint>

namespace radixrt {

class ThreadProgress {
  public:
    explicit ThreadProgress(int most) : most_(most), threads_(most) {}

    int most() const { return most_; }
    int threads() const { return threads_; }

    // Threads of a loop that starts at a time, in nanoseconds.
    int begin(int64_t now) {
        if (threads_ < most_ && !trial_ && now >= retry_at_) {
            threads_++;
            trial_ = true;
            spent_ = late_ = 0;
        }
        return threads_;
    }

    // A loop began, the calling thread found no more pieces after so many of its own, and the last piece ended, at these
    // times.
    void end(int64_t began, int64_t own_ended, int64_t ended, int64_t own_pieces) {
        const int64_t piece = own_pieces ? (own_ended - began) / own_pieces : 0;
        late_ += std::max<int64_t>(0, ended - own_ended - 2 * piece - GRACE);
        spent_ += ended - began;
        const bool is_late = late_ * 4 > spent_;
        if (spent_ < WINDOW && !(is_late && late_ > MOST_LATE)) return;
        if (is_late && threads_ > 1) {
            threads_--;
            // A trial that failed is followed by a longer pause, at most the longest.
            pause_ = trial_ ? std::min(2 * pause_, LONGEST_PAUSE) : SHORTEST_PAUSE;
            retry_at_ = ended + pause_;
        } else if (trial_) {
            pause_ = SHORTEST_PAUSE;  // the next thread is tried at once
        }
        trial_ = false;
        spent_ = late_ = 0;
    }

  private:
    static constexpr int64_t GRACE = 20'000;       // for a thread that has to wake up
    static constexpr int64_t WINDOW = 8'000'000;   // time in loops over which lateness is judged
    static constexpr int64_t MOST_LATE = 1'500'000;  // lateness that is judged at once: about half of a time slice
    static constexpr int64_t SHORTEST_PAUSE = 250'000'000, LONGEST_PAUSE = 1'000'000'000;

    int most_, threads_;
    bool trial_ = false;
    int64_t spent_ = 0, late_ = 0, retry_at_ = 0, pause_ = SHORTEST_PAUSE;
};

}  // namespace radixrt
