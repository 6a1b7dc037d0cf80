#include "kernels/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/cpu/stream_fetch.h"

namespace larder {
namespace {

// Registers that the operating system saves and restores, from XCR0.
std::uint64_t saved_state() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return 0;
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

struct Features {
  std::uint64_t saved = saved_state();
  unsigned leaf1_c = 0;
  unsigned leaf7_b = 0, leaf7_c = 0, leaf7_d = 0;
  unsigned leaf7_1_a = 0;

  Features() {
    unsigned a = 0, b = 0, d = 0;
    __get_cpuid(1, &a, &b, &leaf1_c, &d);
    unsigned max_subleaf = 0;
    if (__get_cpuid_count(7, 0, &max_subleaf, &leaf7_b, &leaf7_c, &leaf7_d) != 0 &&
        max_subleaf >= 1) {
      unsigned c = 0;
      __get_cpuid_count(7, 1, &leaf7_1_a, &b, &c, &d);
    }
  }
  bool saves(std::uint64_t state) const { return (saved & state) == state; }
};

const Features& features() {
  static const Features of_machine;
  return of_machine;
}

}  // namespace

bool has_avx2() {
  const Features& f = features();
  constexpr unsigned kLeaf1 = bit_FMA | bit_F16C | bit_AVX;
  return f.saves(0x6) && (f.leaf1_c & kLeaf1) == kLeaf1 && (f.leaf7_b & bit_AVX2) != 0;
}

bool has_avx512() {
  const Features& f = features();
  constexpr unsigned kLeaf7 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  return has_avx2() && f.saves(0xE6) && (f.leaf7_b & kLeaf7) == kLeaf7 &&
         (f.leaf7_c & bit_AVX512VNNI) != 0;
}

bool has_avx512_bf16() {
  const Features& f = features();
  constexpr unsigned kBf16 = 1U << 5;
  return has_avx512() && (f.leaf7_1_a & kBf16) != 0;
}

static bool is_amd() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(0, &a, &b, &c, &d);
  return b == signature_AMD_ebx;
}

bool has_fast_bf16() { return has_avx512_bf16() && is_amd(); }

// Whether this process may use them is another question.
static bool are_tiles_there() {
  constexpr unsigned kBf16 = 1U << 22, kTile = 1U << 24;
  constexpr unsigned kAll = kBf16 | kTile;
  return (features().leaf7_d & kAll) == kAll;
}

// Linux lends the tile registers on request only, and then to every thread.
static bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx() {
  return has_avx512_bf16() && features().saves(0x60000) && are_tiles_there() && ask_for_tiles();
}

static StreamFetch stream_fetch_of_machine() {
  const bool is_avx512 = has_avx512();
  if (!is_amd()) {
    if (!is_avx512) return StreamFetch::kNear;
    return are_tiles_there() ? StreamFetch::kTwiceNear : StreamFetch::kTwice;
  }
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  constexpr unsigned kZen5Family = 0x1A;
  const unsigned family = (a >> 8 & 0xF) + (a >> 20 & 0xFF);
  if (family >= kZen5Family) return StreamFetch::kFar;
  return is_avx512 ? StreamFetch::kNextPage : StreamFetch::kNear;
}

const StreamFetch machine_stream_fetch = stream_fetch_of_machine();

}  // namespace larder
