// What the kernels' tests share: tables to run, random data, packed matrices.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu_features.h"
#include "kernels/ggml_types.h"
#include "kernels/kernels.h"
#include "kernels/packing.h"

namespace larder::test {

// Every instruction set that this machine runs, or the one that LARDER_ISA names: an emulated machine
// would take hours for all.
inline std::vector<const KernelTable*> tables() {
  if (std::getenv("LARDER_ISA") != nullptr) return {&select_kernels()};
  std::vector<const KernelTable*> found;
  for (const Isa isa : kCpuIsas) {
    if (isa == Isa::kAvx512Bf16) continue;  // AVX-512 but for products and attention, see below
    if (const KernelTable* table = kernels_for(isa)) found.push_back(table);
  }
  return found;
}

// And the one that is another in its products alone.
inline std::vector<const KernelTable*> tables_of_products() {
  std::vector<const KernelTable*> found = tables();
  if (const KernelTable* table = kernels_for(Isa::kAvx512Bf16)) found.push_back(table);
  return found;
}

// AMX's products of BF16 weights and its attention, with its tile instructions written in C++; base: AVX-512 BF16's.
inline const KernelTable& emulated_amx(const KernelTable& base) {
  static const KernelTable emulated = [&base] {
    KernelTable table = base;
    table.isa = Isa::kAmx;
    table.name = "amx, emulated";
    table.rounds_w8 = true;
    table.matmul = [](const MatmulArgs& args, int panel_begin, int panel_end) {
      if (isa_amx_emulated::multiplies(args)) return isa_amx_emulated::matmul_bf16(args, panel_begin, panel_end);
      if (isa_amx_emulated::multiplies_w8(args)) return isa_amx_emulated::matmul_w8(args, panel_begin, panel_end);
      kernels_for(Isa::kAvx512)->matmul(args, panel_begin, panel_end);
    };
    table.num_row_tiles = isa_amx_emulated::num_packed_tiles;
    table.pack_rows = isa_amx_emulated::pack_rows;
    table.matmul_stack_bytes = [](const MatmulArgs& args) {
      return isa_amx_emulated::multiplies(args) ? isa_amx_emulated::matmul_bf16_stack_bytes()
                                                : isa_amx_emulated::matmul_w8_stack_bytes();
    };
    table.attention = isa_amx_emulated::attention;
    table.merge_attention = isa_amx_emulated::merge_attention;
    table.attention_common = isa_amx_emulated::attention_common;
    table.attention_stack_bytes = isa_amx_emulated::attention_stack_bytes;
    return table;
  }();
  return emulated;
}

// And those whose attention rounds to BF16; AMX emulated where the machine has none.
inline std::vector<const KernelTable*> tables_of_attention() {
  std::vector<const KernelTable*> found = tables();
  if (std::getenv("LARDER_ISA") != nullptr) return found;
  if (const KernelTable* table = kernels_for(Isa::kAvx512Bf16)) {
    found.push_back(table);
    if (!has_amx()) found.push_back(&emulated_amx(*table));
  }
  return found;
}

// Whether it would take minutes for what others do in seconds.
inline bool is_slow(const KernelTable& table) {
  return table.isa == Isa::kGeneric || std::string_view(table.name).ends_with("emulated");
}

inline std::vector<float> random_values(std::size_t count, unsigned seed, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline constexpr GgmlType kAllTypes[] = {
    GgmlType::kF32,  GgmlType::kF16,  GgmlType::kBF16, GgmlType::kQ4_0, GgmlType::kQ4_1,
    GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ8_0, GgmlType::kQ2_K, GgmlType::kQ3_K,
    GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kIQ4_NL, GgmlType::kIQ4_XS, GgmlType::kMXFP4};

inline bool is_quantised(GgmlType type) {
  return ggml_type_traits(static_cast<std::uint32_t>(type))->block_size > 1;
}

// Random GGUF rows whose FP16 fields are small numbers.
inline std::vector<std::byte> random_rows(GgmlType type, int rows, int cols, unsigned seed) {
  const GgmlTypeTraits traits = *ggml_type_traits(static_cast<std::uint32_t>(type));
  const std::size_t blocks =
      static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols / traits.block_size);
  const auto block_bytes = static_cast<std::size_t>(traits.block_size_bytes);
  std::vector<std::byte> data(blocks * block_bytes);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.05F);
  const auto put_half = [&](std::size_t at) {
    const std::uint16_t half = float_to_half(normal(random));
    std::memcpy(data.data() + at, &half, 2);
  };
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t begin = block * block_bytes;
    if (type == GgmlType::kF32) {
      const float value = normal(random);
      std::memcpy(data.data() + begin, &value, 4);
      continue;
    }
    if (type == GgmlType::kBF16) {
      const std::uint16_t value = float_to_bfloat16(normal(random));
      std::memcpy(data.data() + begin, &value, 2);
      continue;
    }
    for (std::size_t i = 0; i < block_bytes; ++i) data[begin + i] = std::byte(random() & 255);
    switch (type) {
      case GgmlType::kQ2_K:
        put_half(begin + 80);
        put_half(begin + 82);
        break;
      case GgmlType::kQ3_K:
        put_half(begin + 108);
        break;
      case GgmlType::kQ6_K:
        put_half(begin + 208);
        break;
      case GgmlType::kQ4_1:
      case GgmlType::kQ5_1:
      case GgmlType::kQ4_K:
      case GgmlType::kQ5_K:
        put_half(begin);
        put_half(begin + 2);
        break;
      case GgmlType::kMXFP4:
        data[begin] = std::byte(118 + random() % 8);
        break;
      default:
        put_half(begin);
    }
  }
  return data;
}

// A random matrix, packed, and its values.
struct TestMatrix {
  TestMatrix(GgmlType type, int rows, int cols, unsigned seed = 1)
      : TestMatrix(type, rows, cols, random_rows(type, rows, cols, seed)) {}
  TestMatrix(GgmlType type, int rows, int cols, const std::vector<std::byte>& source) {
    ThreadPool pool(1);
    const PackedMatrix layout = packed_layout(type, rows, cols);
    memory = AlignedBuffer(static_cast<std::size_t>(packed_size_bytes(layout)));
    packed = pack_matrix(type, source, rows, cols, memory.data(), pool);
    values.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    dequantize_row(type, source.data(), values.data(), static_cast<std::int64_t>(values.size()));
  }

  AlignedBuffer memory;
  PackedMatrix packed;
  std::vector<float> values;  // [rows, cols]
};

// Quantised activations with their memory.
struct TestActivations {
  TestActivations(const KernelTable& table, const std::vector<float>& x, int rows, int cols)
      : q(x.size()), scale(x.size() / 32), sum(x.size() / 16) {
    view = {q.data(), scale.data(), sum.data(), cols};
    table.quantize_rows(x.data(), cols, view, 0, rows);
  }

  std::vector<std::int8_t> q;
  std::vector<float> scale;
  std::vector<std::int32_t> sum;
  QuantizedRows view;
};

}  // namespace larder::test
