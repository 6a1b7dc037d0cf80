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

std::int64_t stack_bytes_with_bf16(const MatmulArgs& args) {
  if (isa_avx512_bf16::multiplies(args)) return isa_avx512_bf16::matmul_bf16_stack_bytes();
  return isa_avx512::kTable.matmul_stack_bytes(args);
}
std::int64_t stack_bytes_with_amx(const MatmulArgs& args) {
  if (isa_amx::multiplies(args)) return isa_amx::matmul_bf16_stack_bytes();
  if (isa_amx::multiplies_w8(args)) return isa_amx::matmul_w8_stack_bytes();
  return stack_bytes_with_bf16(args);
}

// The tables of machines that have more than AVX-512: what differs from that.
KernelTable avx512_bf16_table() {
  KernelTable table = isa_avx512::kTable;
  table.isa = Isa::kAvx512Bf16;
  table.name = "avx512_bf16";
  table.matmul = matmul_with_bf16;
  table.matmul_stack_bytes = stack_bytes_with_bf16;
  table.attention = isa_avx512_bf16::attention;
  table.merge_attention = isa_avx512_bf16::merge_attention;
  table.attention_common = isa_avx512_bf16::attention_common;
  table.attention_stack_bytes = isa_avx512_bf16::attention_stack_bytes;
  return table;
}
KernelTable amx_table() {
  KernelTable table = isa_avx512::kTable;
  table.isa = Isa::kAmx;
  table.name = "amx";
  table.rounds_w8 = true;
  table.matmul = matmul_with_amx;
  table.num_row_tiles = isa_amx::num_packed_tiles;
  table.pack_rows = isa_amx::pack_rows;
  table.matmul_stack_bytes = stack_bytes_with_amx;
  table.attention = isa_amx::attention;
  table.merge_attention = isa_amx::merge_attention;
  table.attention_common = isa_amx::attention_common;
  table.attention_stack_bytes = isa_amx::attention_stack_bytes;
  return table;
}

}  // namespace

const KernelTable* kernels_for(Isa isa) {
  static const KernelTable avx512_bf16 = avx512_bf16_table();
  static const KernelTable amx = amx_table();
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
