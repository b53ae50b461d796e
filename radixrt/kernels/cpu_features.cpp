// Features of the processor that the operating system allows, and features that this library was compiled for, by the
// names of Linux's /proc/cpuinfo. Asks the processor itself, because not every system has such a file.

#include <cstdint>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

#if defined(__x86_64__)

struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    explicit Leaf(unsigned leaf, unsigned part = 0) { __get_cpuid_count(leaf, part, &eax, &ebx, &ecx, &edx); }
};

// Registers that the operating system saves for a thread.
uint64_t saved_registers() {
    if (!(Leaf(1).ecx >> 27 & 1)) return 0;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

std::string processor() {
    const uint64_t saved = saved_registers();
    const bool avx = (saved & 0x6) == 0x6, avx512 = (saved & 0xe6) == 0xe6, tiles = (saved & 0x60000) == 0x60000;
    const Leaf basic(1), more(7), newer(7, 1), extended(0x80000001);
    std::string names;
    const auto add = [&](const char* name, bool allowed, unsigned word, int bit) {
        if (allowed && (word >> bit & 1)) (names += names.empty() ? "" : " ") += name;
    };
    add("fma", avx, basic.ecx, 12);
    add("movbe", true, basic.ecx, 22);
    add("f16c", avx, basic.ecx, 29);
    add("abm", true, extended.ecx, 5);
    add("bmi1", true, more.ebx, 3);
    add("avx2", avx, more.ebx, 5);
    add("bmi2", true, more.ebx, 8);
    add("avx512f", avx512, more.ebx, 16);
    add("avx512dq", avx512, more.ebx, 17);
    add("avx512cd", avx512, more.ebx, 28);
    add("avx512bw", avx512, more.ebx, 30);
    add("avx512vl", avx512, more.ebx, 31);
    add("avx512_vnni", avx512, more.ecx, 11);
    add("avx512_bf16", avx512, newer.eax, 5);
    add("amx_bf16", tiles, more.edx, 22);
    add("amx_tile", tiles, more.edx, 24);
    add("amx_int8", tiles, more.edx, 25);
    return names;
}

#else

std::string processor() { return ""; }

#endif

}  // namespace

extern "C" {
const char* radixrt_cpu_features() {
    static const std::string names = processor();
    return names.c_str();
}

const char* radixrt_kernel_features() {
    return ""
#ifdef __ARM_NEON
           " asimd"
#endif
#ifdef __AVX2__
           " avx2"
#endif
#ifdef __AVX512F__
           " avx512f"
#endif
#ifdef __AVX512VNNI__
           " avx512_vnni"
#endif
#ifdef __AVX512BF16__
           " avx512_bf16"
#endif
#ifdef __AMX_BF16__
           " amx_bf16"
#endif
#ifdef __AMX_INT8__
           " amx_int8"
#endif
        ;
}
}
