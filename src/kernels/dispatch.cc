#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/cpu/stream_fetch.h"
#include "kernels/cpu/tables.h"

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

bool has_avx2(const Features& f) {
  constexpr unsigned kLeaf1 = bit_FMA | bit_F16C | bit_AVX;
  return f.saves(0x6) && (f.leaf1_c & kLeaf1) == kLeaf1 && (f.leaf7_b & bit_AVX2) != 0;
}

bool has_avx512(const Features& f) {
  constexpr unsigned kLeaf7 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  return has_avx2(f) && f.saves(0xE6) && (f.leaf7_b & kLeaf7) == kLeaf7 &&
         (f.leaf7_c & bit_AVX512VNNI) != 0;
}

bool has_avx512_bf16(const Features& f) {
  constexpr unsigned kBf16 = 1U << 5;
  return has_avx512(f) && (f.leaf7_1_a & kBf16) != 0;
}

// Linux lends the tile registers on request only, and then to every thread.
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx(const Features& f) {
  constexpr unsigned kTile = 1U << 24, kInt8 = 1U << 25;
  return has_avx512_bf16(f) && f.saves(0x60000) && (f.leaf7_d & kTile) != 0 &&
         (f.leaf7_d & kInt8) != 0 && ask_for_tiles();
}

template <const KernelTable& kBase>
void matmul_with_bf16(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (isa_avx512_bf16::multiplies(args))
    return isa_avx512_bf16::matmul_bf16(args, panel_begin, panel_end);
  kBase.matmul(args, panel_begin, panel_end);
}

// The table of a machine that also has AVX-512 BF16.
template <const KernelTable& kBase>
KernelTable with_bf16(Isa isa, const char* name) {
  KernelTable table = kBase;
  table.isa = isa;
  table.name = name;
  table.matmul = matmul_with_bf16<kBase>;
  table.attention = isa_avx512_bf16::attention;
  table.merge_attention = isa_avx512_bf16::merge_attention;
  return table;
}

StreamFetch stream_fetch_of_machine() {
  const bool is_avx512 = has_avx512(features());
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(0, &a, &b, &c, &d);
  if (b != signature_AMD_ebx) return is_avx512 ? StreamFetch::kTwice : StreamFetch::kNear;
  __get_cpuid(1, &a, &b, &c, &d);
  constexpr unsigned kZen5Family = 0x1A;
  const unsigned family = (a >> 8 & 0xF) + (a >> 20 & 0xFF);
  if (family >= kZen5Family) return StreamFetch::kFar;
  return is_avx512 ? StreamFetch::kNextPage : StreamFetch::kNear;
}

}  // namespace

const StreamFetch machine_stream_fetch = stream_fetch_of_machine();

const KernelTable* kernels_for(Isa isa) {
  static const KernelTable avx512_bf16 =
      with_bf16<isa_avx512::kTable>(Isa::kAvx512Bf16, "avx512_bf16");
  static const KernelTable amx = with_bf16<isa_amx::kTable>(Isa::kAmx, "amx");
  switch (isa) {
    case Isa::kGeneric:
      return &isa_generic::kTable;
    case Isa::kAvx2:
      return has_avx2(features()) ? &isa_avx2::kTable : nullptr;
    case Isa::kAvx512:
      return has_avx512(features()) ? &isa_avx512::kTable : nullptr;
    case Isa::kAvx512Bf16:
      return has_avx512_bf16(features()) ? &avx512_bf16 : nullptr;
    case Isa::kAmx:
      return has_amx(features()) ? &amx : nullptr;
    case Isa::kCuda:
      return nullptr;
  }
  return nullptr;
}

const KernelTable& select_kernels() {
  constexpr Isa kBestFirst[] = {Isa::kAmx, Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2,
                                Isa::kGeneric};
  constexpr std::string_view kNames[] = {"amx", "avx512_bf16", "avx512", "avx2", "generic"};
  const char* wanted = std::getenv("LARDER_ISA");
  const bool any = wanted == nullptr || *wanted == '\0';
  for (int i = 0; i < 5; ++i) {
    if (!any && kNames[i] != wanted) continue;
    if (const KernelTable* table = kernels_for(kBestFirst[i])) return *table;
    if (!any) throw_invalid("LARDER_ISA={}: this machine has not got it; leave it unset", wanted);
  }
  throw_invalid("LARDER_ISA={}: unknown; use generic, avx2, avx512, avx512_bf16 or amx", wanted);
}

}  // namespace larder
