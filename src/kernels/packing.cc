#include "kernels/packing.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/ggml_blocks.h"

namespace larder {
namespace {

constexpr int kSuperCols = 256;

// What a format stores per panel.
struct FormatShape {
  std::int64_t code_bytes;  // per 32 columns
  int group_size;           // columns that share a scale; 0 = values, not codes
  int scale_bytes;          // of one scale or minimum
  bool two_level;
};

FormatShape shape_of(PackedFormat format) {
  switch (format) {
    case PackedFormat::kF32:
      return {2048, 0, 0, false};
    case PackedFormat::kF16:
      return {1024, 0, 0, false};
    case PackedFormat::kBF16:
      return {1024, 0, 0, false};
    case PackedFormat::kW4:
      return {256, 32, 2, false};
    case PackedFormat::kW4K:
      return {256, 32, 1, true};
    case PackedFormat::kW8:
      return {512, 32, 2, false};
    case PackedFormat::kW8Min:
      return {512, 32, 4, false};
    case PackedFormat::kW8Fine:
      return {512, 16, 1, true};
  }
  CHECK(false, static_cast<int>(format));
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One panel while it is filled.
struct PanelWriter {
  const PackedMatrix& layout;
  FormatShape shape;
  std::byte* panel;

  template <class T>
  T* scale(std::int64_t group, int lane) const {
    return reinterpret_cast<T*>(panel + layout.scale_offset_bytes) + group * kPanelRows + lane;
  }
  template <class T>
  T* minimum(std::int64_t group, int lane) const {
    return reinterpret_cast<T*>(panel + layout.min_offset_bytes) + group * kPanelRows + lane;
  }

  void put_code(int col, int lane, std::uint8_t code) const {
    auto* codes = reinterpret_cast<std::uint8_t*>(panel);
    const int quad = col / 4;
    const int byte = lane * 4 + col % 4;
    if (shape.code_bytes == 512) {
      codes[std::int64_t{quad} * 64 + byte] = code;
    } else {
      codes[std::int64_t{quad / 2} * 64 + byte] |=
          static_cast<std::uint8_t>(quad % 2 == 0 ? code : code << 4);
    }
  }

  void put_super(int col, int lane, const GgmlBlock& block) const {
    const int per_super = layout.has_min ? 2 * kPanelRows : kPanelRows;
    auto* super = reinterpret_cast<std::uint16_t*>(panel + layout.super_offset_bytes) +
                  std::int64_t{col / kSuperCols} * per_super;
    super[lane] = block.d_half;
    if (layout.has_min) super[kPanelRows + lane] = block.m_half;
  }

  void put_group(int col, int lane, const GgmlBlock& block, int group) const {
    const std::int64_t index = col / shape.group_size;
    if (shape.two_level) {
      *scale<std::int8_t>(index, lane) = block.scale_code[group];
      if (layout.has_min) *minimum<std::uint8_t>(index, lane) = block.min_code[group];
    } else if (shape.scale_bytes == 4) {
      *scale<float>(index, lane) = group_scale(block, group);
      *minimum<float>(index, lane) = group_minimum(block, group);
    } else {
      *scale<std::uint16_t>(index, lane) = block.d_half;
      if (layout.has_min) *minimum<std::uint16_t>(index, lane) = block.m_half;
    }
  }

  // Codes that the kernels take as scale * (code - offset), with the format's own offset.
  void put_block(int col, int lane, const GgmlBlock& block, int block_size) const {
    const int stored_offset = layout.has_min ? 0 : (shape.code_bytes == 256 ? 8 : 128);
    const int shift = stored_offset - block.offset;
    for (int i = 0; i < block_size; ++i) {
      put_code(col + i, lane, static_cast<std::uint8_t>(block.code[i] + shift));
      if (i % block.group_size == 0) put_group(col + i, lane, block, i / block.group_size);
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

  void put_row(GgmlType type, const std::byte* row, int lane) const {
    const GgmlTypeTraits traits = *ggml_type_traits(static_cast<std::uint32_t>(type));
    GgmlBlock block;
    for (int col = 0; col < layout.num_cols; col += traits.block_size) {
      if (shape.group_size == 0) {
        put_value(col, lane, row);
      } else {
        unpack_block(type, row, block);
        put_block(col, lane, block, traits.block_size);
      }
      row += traits.block_size_bytes;
    }
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
    case GgmlType::kQ8_0:
      layout.format = PackedFormat::kW8;
      break;
    case GgmlType::kQ5_1:
    case GgmlType::kQ5_K:
      layout.format = PackedFormat::kW8Min;
      layout.has_min = true;
      break;
    case GgmlType::kQ2_K:
      layout.format = PackedFormat::kW8Fine;
      layout.has_min = true;
      break;
    case GgmlType::kQ3_K:
    case GgmlType::kQ6_K:
      layout.format = PackedFormat::kW8Fine;
      break;
  }
  const FormatShape shape = shape_of(layout.format);
  const std::int64_t cols = num_cols;
  if (shape.group_size == 0) {
    // Even, since kBF16 pairs its columns.
    layout.panel_stride_bytes = round_up(round_up(cols, 2) * (shape.code_bytes / 32), 64);
    return layout;
  }
  std::int64_t end = cols / 32 * shape.code_bytes;
  const std::int64_t array_bytes = cols / shape.group_size * kPanelRows * shape.scale_bytes;
  layout.scale_offset_bytes = end;
  end = round_up(end + array_bytes, 64);
  if (layout.has_min) {
    layout.min_offset_bytes = end;
    end = round_up(end + array_bytes, 64);
  }
  if (shape.two_level) {
    layout.super_offset_bytes = end;
    end += cols / kSuperCols * kPanelRows * 2 * (layout.has_min ? 2 : 1);
  }
  layout.panel_stride_bytes = round_up(end, 64);
  return layout;
}

std::int64_t packed_size_bytes(const PackedMatrix& layout) {
  return layout.num_panels() * layout.panel_stride_bytes;
}

PackedMatrix pack_matrix(GgmlType type, std::span<const std::byte> rows, int num_rows, int num_cols,
                         std::byte* data, ThreadPool& pool) {
  PackedMatrix matrix = packed_layout(type, num_rows, num_cols);
  const GgmlTypeTraits traits = *ggml_type_traits(static_cast<std::uint32_t>(type));
  const std::int64_t row_bytes =
      std::int64_t{num_cols} / traits.block_size * traits.block_size_bytes;
  CHECK(static_cast<std::int64_t>(rows.size()) == num_rows * row_bytes, rows.size(), row_bytes);
  matrix.data = data;
  pool.parallel_for(matrix.num_panels(), [&](int panel, int) {
    std::byte* begin = data + panel * matrix.panel_stride_bytes;
    std::memset(begin, 0, static_cast<std::size_t>(matrix.panel_stride_bytes));
    const PanelWriter writer{matrix, shape_of(matrix.format), begin};
    const int first = panel * kPanelRows;
    for (int lane = 0; lane < std::min(kPanelRows, num_rows - first); ++lane) {
      writer.put_row(type, rows.data() + (first + lane) * row_bytes, lane);
    }
  });
  return matrix;
}

}  // namespace larder
