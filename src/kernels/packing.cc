#include "kernels/packing.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "kernels/ggml_blocks.h"
#include "kernels/packed_shape.h"

namespace larder {
namespace {

constexpr std::int64_t kRunBytes = std::int64_t{8} << 20;  // of rows, between two reports of progress

// Whether no exponent of a little-endian number is all ones: infinite, or not a number.
bool is_finite(PackedFormat format, const std::byte* value) {
  const auto low = std::to_integer<unsigned>(value[format == PackedFormat::kF32 ? 2 : 0]);
  const auto high = std::to_integer<unsigned>(value[format == PackedFormat::kF32 ? 3 : 1]);
  if (format == PackedFormat::kF16) return (high & 0x7CU) != 0x7CU;
  return (high & 0x7FU) != 0x7FU || (low & 0x80U) == 0;
}

bool is_finite(std::uint16_t half) { return (half & 0x7C00U) != 0x7C00U; }

bool has_finite_levels(const GgmlBlock& block) {
  return std::isfinite(block.d * 16) || std::ranges::all_of(block.code, block.code + 32, [&](std::uint8_t code) {
           return std::isfinite(block.d * static_cast<float>(block.levels[code] - block.offset));
         });
}

// One panel while it is filled.
struct PanelWriter {
  const PackedMatrix& layout;
  PackedShape shape;
  std::byte* panel;

  std::byte* chunk_of(int col) const {
    return panel + std::int64_t{col / shape.chunk_cols} * shape.chunk_bytes;
  }

  // One value of an array of [groups][16].
  template <class T>
  void put(int col, int offset, int lane, T value) const {
    const int group = col % shape.chunk_cols / shape.group_cols;
    auto* to = chunk_of(col) + offset + (group * kPanelRows + lane) * static_cast<int>(sizeof(T));
    std::memcpy(to, &value, sizeof(T));
  }

  // The codes of one group, each with `shift` added; four or eight go as one word.
  void put_codes(int col, int lane, const std::uint8_t* codes, int shift) const {
    constexpr std::uint32_t kLower = 0x0F0F0F0FU;
    const std::uint32_t shifts = static_cast<std::uint32_t>(shift) * 0x01010101U;
    const int group = col % shape.chunk_cols / shape.group_cols;
    const int group_bytes = shape.group_cols * kPanelRows * shape.code_bits / 8;
    std::byte* to = chunk_of(col) + shape.code_offset + group * group_bytes + lane * 4;
    const int upper_bits = shape.code_bits - 4;
    std::uint32_t upper = 0;
    for (int pair = 0; pair < shape.group_cols / 8; ++pair) {
      std::uint32_t quads[2];
      std::memcpy(quads, codes + 8 * pair, 8);
      for (std::uint32_t& quad : quads) quad += shifts;  // no byte exceeds 255
      if (shape.code_bits == 8) {
        std::memcpy(to + pair * 128, &quads[0], 4);
        std::memcpy(to + pair * 128 + 64, &quads[1], 4);
        continue;
      }
      const std::uint32_t lower = (quads[0] & kLower) | (quads[1] & kLower) << 4;
      std::memcpy(to + pair * 64, &lower, 4);
      upper |= (quads[0] >> 4 & kLower) << 2 * pair * upper_bits;
      upper |= (quads[1] >> 4 & kLower) << (2 * pair + 1) * upper_bits;
    }
    if (upper_bits == 1 || upper_bits == 2) {
      std::memcpy(to + shape.group_cols / 8 * 64, &upper, 4);
    }
  }

  void put_super(int col, int lane, const GgmlBlock& block) const {
    auto* super = reinterpret_cast<std::uint16_t*>(chunk_of(col) + shape.super_offset);
    super[lane] = block.d_half;
    if (layout.has_min) super[kPanelRows + lane] = block.m_half;
  }

  void put_group(int col, int lane, const GgmlBlock& block, int group) const {
    if (shape.two_level) {
      put(col, shape.scale_offset, lane, block.scale_code[group]);
      if (layout.has_min) put(col, shape.min_offset, lane, block.min_code[group]);
    } else {
      if (layout.format == PackedFormat::kMxFp4) return put(col, shape.scale_offset, lane, block.exponent);
      put(col, shape.scale_offset, lane, block.d_half);
      if (layout.has_min) put(col, shape.min_offset, lane, block.m_half);
    }
  }

  // Codes that the kernels take as scale * (code - offset), with the format's own offset.
  void put_block(int col, int lane, const GgmlBlock& block, int block_size) const {
    const int stored_offset = layout.has_min ? 0 : 1 << (shape.code_bits - 1);
    for (int group = 0; group < block_size / block.group_size; ++group) {
      const int first = group * block.group_size;
      put_codes(col + first, lane, block.code + first, block.levels != nullptr ? 0 : stored_offset - block.offset);
      put_group(col + first, lane, block, group);
    }
    if (shape.two_level) put_super(col, lane, block);
  }

  void put_value(int col, int lane, const std::byte* value) const {
    if (layout.format == PackedFormat::kF32) {
      std::memcpy(panel + (std::int64_t{col} * kPanelRows + lane) * 4, value, 4);
    } else if (layout.format == PackedFormat::kF16) {
      std::memcpy(panel + (std::int64_t{col} * kPanelRows + lane) * 2, value, 2);
    } else {
      const std::int64_t index = std::int64_t{col / 2} * 2 * kPanelRows + lane * 2 + col % 2;
      std::memcpy(panel + index * 2, value, 2);
    }
  }

  // Returns whether all of its values are finite.
  bool put_row(GgmlType type, const std::byte* row, int lane) const {
    const GgmlTypeTraits traits = *ggml_type_traits(static_cast<std::uint32_t>(type));
    bool all_finite = true;
    GgmlBlock block;
    for (int col = 0; col < layout.num_cols; col += traits.block_size) {
      if (shape.group_cols == 0) {
        all_finite = all_finite && is_finite(layout.format, row);
        put_value(col, lane, row);
      } else {
        unpack_block(type, row, block);
        all_finite = all_finite && (layout.format == PackedFormat::kMxFp4
                                        ? has_finite_levels(block)
                                        : is_finite(block.d_half) && (!layout.has_min || is_finite(block.m_half)));
        put_block(col, lane, block, traits.block_size);
      }
      row += traits.block_size_bytes;
    }
    return all_finite;
  }
};

}  // namespace

PackedMatrix packed_layout(GgmlType type, int num_rows, int num_cols) {
  const auto traits = ggml_type_traits(static_cast<std::uint32_t>(type));
  CHECK(traits.has_value(), static_cast<std::uint32_t>(type));
  CHECK(num_rows >= 0 && num_cols > 0 && num_cols % traits->block_size == 0, num_rows, num_cols);
  PackedMatrix layout;
  layout.num_rows = num_rows;
  layout.num_cols = num_cols;
  switch (type) {
    case GgmlType::kF32:
      layout.format = PackedFormat::kF32;
      break;
    case GgmlType::kF16:
      layout.format = PackedFormat::kF16;
      break;
    case GgmlType::kBF16:
      layout.format = PackedFormat::kBF16;
      break;
    case GgmlType::kQ4_0:
      layout.format = PackedFormat::kW4;
      break;
    case GgmlType::kQ4_1:
      layout.format = PackedFormat::kW4;
      layout.has_min = true;
      break;
    case GgmlType::kQ4_K:
      layout.format = PackedFormat::kW4K;
      layout.has_min = true;
      break;
    case GgmlType::kQ5_0:
      layout.format = PackedFormat::kW5;
      break;
    case GgmlType::kQ5_1:
      layout.format = PackedFormat::kW5;
      layout.has_min = true;
      break;
    case GgmlType::kQ8_0:
      layout.format = PackedFormat::kW8;
      break;
    case GgmlType::kQ2_K:
      layout.format = PackedFormat::kW4Fine;
      layout.has_min = true;
      break;
    case GgmlType::kQ3_K:
      layout.format = PackedFormat::kW4Fine;
      break;
    case GgmlType::kQ5_K:
      layout.format = PackedFormat::kW5K;
      layout.has_min = true;
      break;
    case GgmlType::kQ6_K:
      layout.format = PackedFormat::kW6Fine;
      break;
    case GgmlType::kIQ4_NL:
      layout.format = PackedFormat::kIq4;
      break;
    case GgmlType::kIQ4_XS:
      layout.format = PackedFormat::kIq4K;
      break;
    case GgmlType::kMXFP4:
      layout.format = PackedFormat::kMxFp4;
      break;
  }
  const PackedShape shape = packed_shape(layout.format, layout.has_min);
  layout.panel_stride_bytes =
      (std::int64_t{num_cols} + shape.chunk_cols - 1) / shape.chunk_cols * shape.chunk_bytes;
  return layout;
}

std::int64_t packed_size_bytes(const PackedMatrix& layout) {
  return layout.num_panels() * layout.panel_stride_bytes;
}

PackedMatrix pack_matrix(GgmlType type, std::span<const std::byte> rows, int num_rows, int num_cols,
                         std::byte* data, ThreadPool& pool, const PackProgress& progress) {
  PackedMatrix matrix = packed_layout(type, num_rows, num_cols);
  const GgmlTypeTraits traits = *ggml_type_traits(static_cast<std::uint32_t>(type));
  const std::int64_t row_bytes =
      std::int64_t{num_cols} / traits.block_size * traits.block_size_bytes;
  CHECK(static_cast<std::int64_t>(rows.size()) == num_rows * row_bytes, rows.size(), row_bytes);
  matrix.data = data;
  std::atomic<int> odd_row = num_rows;  // the first that is not finite
  const auto pack_panel = [&](int panel) {
    std::byte* begin = data + panel * matrix.panel_stride_bytes;
    std::memset(begin, 0, static_cast<std::size_t>(matrix.panel_stride_bytes));
    const PanelWriter writer{matrix, packed_shape(matrix.format, matrix.has_min), begin};
    const int first = panel * kPanelRows;
    for (int lane = 0; lane < std::min(kPanelRows, num_rows - first); ++lane) {
      if (writer.put_row(type, rows.data() + (first + lane) * row_bytes, lane)) continue;
      int known = odd_row;
      while (first + lane < known && !odd_row.compare_exchange_weak(known, first + lane)) continue;
    }
  };
  const int num_panels = static_cast<int>(matrix.num_panels());
  // Enough for all threads, or what is in a run of that size.
  const int run = static_cast<int>(std::clamp<std::int64_t>(kRunBytes / (kPanelRows * row_bytes),
                                                            4 * pool.num_threads(), num_panels + 4 * pool.num_threads()));
  for (int done = 0; done < num_panels; done += run) {
    const int count = std::min(run, num_panels - done);
    pool.parallel_for(count, [&](int panel, int) { pack_panel(done + panel); });
    if (progress) progress((done + count) * matrix.panel_stride_bytes);
  }
  if (odd_row < num_rows) throw_invalid("row {} has a value that is not a finite number", odd_row.load());
  return matrix;
}

}  // namespace larder
