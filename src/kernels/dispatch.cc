#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu_features.h"

namespace larder {
namespace {

template <const KernelTable& kBase>
void matmul_with_bf16(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (isa_avx512_bf16::multiplies(args))
    return isa_avx512_bf16::matmul_bf16(args, panel_begin, panel_end);
  kBase.matmul(args, panel_begin, panel_end);
}
void matmul_with_amx_bf16(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (isa_amx_bf16::multiplies(args)) return isa_amx_bf16::matmul_bf16(args, panel_begin, panel_end);
  matmul_with_bf16<isa_amx::kTable>(args, panel_begin, panel_end);
}

// The table of a machine that also has AVX-512 BF16.
template <const KernelTable& kBase>
KernelTable with_bf16(Isa isa, const char* name, decltype(KernelTable::matmul) matmul) {
  KernelTable table = kBase;
  table.isa = isa;
  table.name = name;
  table.matmul = matmul;
  table.attention = isa_avx512_bf16::attention;
  table.merge_attention = isa_avx512_bf16::merge_attention;
  table.attention_common = isa_avx512_bf16::attention_common;
  return table;
}

}  // namespace

const KernelTable* kernels_for(Isa isa) {
  static const KernelTable avx512_bf16 =
      with_bf16<isa_avx512::kTable>(Isa::kAvx512Bf16, "avx512_bf16", matmul_with_bf16<isa_avx512::kTable>);
  static const KernelTable amx = with_bf16<isa_amx::kTable>(Isa::kAmx, "amx", matmul_with_amx_bf16);
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
