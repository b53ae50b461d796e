// The pool of threads.
//
// A loop is published as one number of 64 bits, its pieces and the next piece, and a thread takes a piece by adding one.
// A thread that comes late therefore finds no piece, or one of a later loop, which is as good. Waiting threads spin for
// some microseconds, because the loops of a step follow one another closely, and then sleep.

#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "thread_progress.h"

#ifdef __linux__
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#endif

namespace radixrt {
namespace {

constexpr int64_t SPIN_NS = 50'000;
constexpr int SPINS = 16;  // between two looks at the clock

inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A flag on which one thread sleeps until another one wakes it.
class Sleeper {
  public:
    // Sleeps until `wake`, unless ready() is true. May return early.
    template <typename Ready>
    void sleep(const Ready& ready) {
        asleep_.store(1);
        if (ready()) {
            asleep_.store(0);
            return;
        }
#ifdef __linux__
        syscall(SYS_futex, &asleep_, FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
        asleep_.store(0);
#else
        std::unique_lock<std::mutex> lock(mutex_);
        condition_.wait(lock, [&] { return asleep_.load() == 0; });
#endif
    }

    void wake() {
        if (asleep_.load() == 0) return;
#ifdef __linux__
        if (asleep_.exchange(0)) syscall(SYS_futex, &asleep_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
#else
        std::lock_guard<std::mutex> lock(mutex_);
        asleep_.store(0);
        condition_.notify_one();
#endif
    }

  private:
    alignas(64) std::atomic<uint32_t> asleep_{0};
#ifndef __linux__
    std::mutex mutex_;
    std::condition_variable condition_;
#endif
};

// Spins until ready() is true, at most for SPIN_NS; returns whether it is.
template <typename Ready>
inline bool spin(const Ready& ready) {
    const int64_t until = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPINS; i++) {
            if (ready()) return true;
            relax();
        }
    } while (now_ns() < until);
    return ready();
}

class Pool {
  public:
    static Pool& get() { return *current(); }

    int64_t most() const { return most_.load(std::memory_order_relaxed); }

    // Waits for the loop that runs, if any. There are fewer threads where the system refuses to start as many.
    void set_most(int count) {
        while (busy_.exchange(true)) std::this_thread::yield();
        while (static_cast<int>(sleepers_.size()) < count - 1 && start_thread()) {}
        count = std::min(count, static_cast<int>(sleepers_.size()) + 1);
        progress_ = ThreadProgress(count);
        most_.store(count);
        busy_.store(false);
    }

    void run(void (*run)(const void*, int64_t), const void* body, int64_t pieces) {
        if (pieces > 1 && most() > 1 && !busy_.exchange(true, std::memory_order_acquire)) {
            loop(run, body, pieces);
            busy_.store(false, std::memory_order_release);
            return;
        }
        for (int64_t piece = 0; piece < pieces; piece++) run(body, piece);
    }

  private:
    // The pool of this process, whose threads end with the process. A child process that was forked has none of the
    // parent's threads, and a copy of a loop of another thread that will never end: the child gets a pool of its own, in
    // which the caller is the only thread until `set_most`.
    static Pool*& current() {
        static Pool* pool = [] {
            pthread_atfork(nullptr, nullptr, [] { current() = new Pool; });
            return new Pool;
        }();
        return pool;
    }

    static bool has_piece(uint64_t loop) { return uint32_t(loop) < loop >> 32; }

    void loop(void (*run)(const void*, int64_t), const void* body, int64_t pieces) {
        const int64_t began = now_ns();
        const int threads = progress_.begin(began);
        if (threads == 1) {
            for (int64_t piece = 0; piece < pieces; piece++) run(body, piece);
            return;
        }
        run_ = run;
        body_ = body;
        done_.store(0, std::memory_order_relaxed);
        taking_.store(threads - 1, std::memory_order_relaxed);
        loop_.store(uint64_t(pieces) << 32);  // what precedes is visible to a thread that takes a piece
        for (int i = 0; i < threads - 1 && i < pieces - 1; i++) sleepers_[i]->wake();
        const int64_t own = take_pieces();
        const int64_t own_ended = now_ns();
        const auto ended = [&] { return done_.load() == pieces; };
        while (!spin(ended)) caller_.sleep(ended);
        progress_.end(began, own_ended, now_ns(), own);
    }

    // Computes pieces until there are no more; returns how many.
    int64_t take_pieces() {
        int64_t count = 0;
        while (has_piece(loop_.load())) {
            const uint64_t taken = loop_.fetch_add(1);
            if (!has_piece(taken)) break;
            run_(body_, uint32_t(taken));
            count++;
            if (done_.fetch_add(1) + 1 == int64_t(taken >> 32)) caller_.wake();
        }
        return count;
    }

    // Returns false if the system has no room for another thread.
    bool start_thread() {
        const int index = static_cast<int>(sleepers_.size());
        sleepers_.push_back(std::make_unique<Sleeper>());
        Sleeper* sleeper = sleepers_.back().get();
#ifdef __linux__
        sigset_t all, before;  // signals are for the threads of the program
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
        bool started = true;
        try {
            std::thread([this, index, sleeper] {
                const auto ready = [&] { return has_piece(loop_.load()) && index < taking_.load(); };
                for (;;) {
                    while (!spin(ready)) sleeper->sleep(ready);
                    take_pieces();
                }
            }).detach();
        } catch (const std::system_error&) {
            sleepers_.pop_back();
            started = false;
        }
#ifdef __linux__
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
        return started;
    }

    alignas(64) std::atomic<uint64_t> loop_{0};  // pieces << 32 | the next piece
    alignas(64) std::atomic<int64_t> done_{0};   // pieces that have ended
    alignas(64) std::atomic<int> taking_{0};     // threads that may take pieces, besides the caller
    void (*run_)(const void*, int64_t) = nullptr;
    const void* body_ = nullptr;
    Sleeper caller_;
    std::vector<std::unique_ptr<Sleeper>> sleepers_;  // one for each thread, besides the caller

    alignas(64) std::atomic<bool> busy_{false};  // held by the caller of a loop; guards what follows
    ThreadProgress progress_{1};
    std::atomic<int64_t> most_{1};
};

}  // namespace

void run_pieces(void (*run)(const void*, int64_t), const void* body, int64_t pieces) {
    Pool::get().run(run, body, pieces);
}

int64_t max_threads() { return Pool::get().most(); }

}  // namespace radixrt

extern "C" {
// Most threads of a loop, at least 1, the caller's included; fewer where the system refuses to start as many.
void radixrt_set_threads(int count) { radixrt::Pool::get().set_most(count > 1 ? count : 1); }
int radixrt_threads() { return static_cast<int>(radixrt::Pool::get().most()); }
}
