// The tile registers of AMX, where the processor and the system have them.

#pragma once

#include <cstdint>

#ifdef __AMX_TILE__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace radixrt {

// Configures all eight tile registers of a thread, of sixteen rows of 64 bytes, while it lives.
class TileRegisters {
  public:
    TileRegisters() {
#ifdef __AMX_TILE__
        static const Config config;  // in memory: the compiler does not know that the instruction reads all of it
        if ((loaded_ = available())) _tile_loadconfig(&config);
#endif
    }
    ~TileRegisters() {
#ifdef __AMX_TILE__
        if (loaded_) _tile_release();
#endif
    }
    TileRegisters(const TileRegisters&) = delete;
    TileRegisters& operator=(const TileRegisters&) = delete;

    bool loaded() const { return loaded_; }

    static bool available() {
#ifdef __AMX_TILE__
        // Linux lets a process use tile registers once it has asked.
        static const bool granted = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0;
        return granted;
#else
        return false;
#endif
    }

  private:
    struct alignas(64) Config {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    bool loaded_ = false;
};

}  // namespace radixrt
