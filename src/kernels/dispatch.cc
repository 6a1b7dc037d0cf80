#include <cstdlib>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu_features.h"

namespace larder {
namespace {

void matmul_with_bf16(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (isa_avx512_bf16::multiplies(args))
    return isa_avx512_bf16::matmul_bf16(args, panel_begin, panel_end);
  isa_avx512::kTable.matmul(args, panel_begin, panel_end);
}
// Codes of fewer than 8 bits go by AVX-512: a group's sums have their own scale, so tiles would have to be stored and
// scaled group by group, and one row would wait for codes to be unpacked to BF16.
void matmul_with_amx(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (isa_amx::multiplies(args)) return isa_amx::matmul_bf16(args, panel_begin, panel_end);
  if (isa_amx::multiplies_w8(args)) return isa_amx::matmul_w8(args, panel_begin, panel_end);
  matmul_with_bf16(args, panel_begin, panel_end);
}

// The table of a machine that has more than AVX-512: what differs from that.
KernelTable beyond_avx512(Isa isa, const char* name, decltype(KernelTable::matmul) matmul,
                          decltype(KernelTable::attention) attention,
                          decltype(KernelTable::merge_attention) merge_attention,
                          decltype(KernelTable::attention_common) attention_common) {
  KernelTable table = isa_avx512::kTable;
  table.isa = isa;
  table.name = name;
  table.matmul = matmul;
  table.attention = attention;
  table.merge_attention = merge_attention;
  table.attention_common = attention_common;
  return table;
}

}  // namespace

const KernelTable* kernels_for(Isa isa) {
  static const KernelTable avx512_bf16 =
      beyond_avx512(Isa::kAvx512Bf16, "avx512_bf16", matmul_with_bf16, isa_avx512_bf16::attention,
                    isa_avx512_bf16::merge_attention, isa_avx512_bf16::attention_common);
  static const KernelTable amx = [] {
    KernelTable table = beyond_avx512(Isa::kAmx, "amx", matmul_with_amx, isa_amx::attention, isa_amx::merge_attention,
                                      isa_amx::attention_common);
    table.rounds_w8 = true;
    return table;
  }();
  switch (isa) {
    case Isa::kGeneric:
      return &isa_generic::kTable;
    case Isa::kAvx2:
      return has_avx2() ? &isa_avx2::kTable : nullptr;
    case Isa::kAvx512:
      return has_avx512() ? &isa_avx512::kTable : nullptr;
    case Isa::kAvx512Bf16:
      return has_avx512_bf16() ? &avx512_bf16 : nullptr;
    case Isa::kAmx:
      return has_amx() ? &amx : nullptr;
    case Isa::kCuda:
      return nullptr;
  }
  return nullptr;
}

const KernelTable& best_kernels() {
  const KernelTable* best = nullptr;
  for (const Isa isa : kCpuIsas) {
    if (isa == Isa::kAvx512Bf16 && !has_fast_bf16()) continue;
    if (const KernelTable* table = kernels_for(isa)) best = table;
  }
  return *best;
}

const KernelTable& select_kernels() {
  constexpr std::string_view kNames[] = {"generic", "avx2", "avx512", "avx512_bf16", "amx"};
  static_assert(std::size(kNames) == std::size(kCpuIsas));
  const char* wanted = std::getenv("LARDER_ISA");
  if (wanted == nullptr || *wanted == '\0') return best_kernels();
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] != wanted) continue;
    if (const KernelTable* table = kernels_for(kCpuIsas[i])) return *table;
    throw_invalid("LARDER_ISA={}: this machine has not got it; leave it unset", wanted);
  }
  throw_invalid("LARDER_ISA={}: unknown; use generic, avx2, avx512, avx512_bf16 or amx", wanted);
}

}  // namespace larder
