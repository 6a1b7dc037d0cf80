// Reading one output of a PackedMatrix on the device. See PackedFormat for the layout.
#pragma once

#include <type_traits>

#include "kernels/cuda/platform.h"
#include "kernels/packed_shape.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// Neighbouring values, loaded at once.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Several {
  T value[kCount];
};
template <class T, int kCount>
LARDER_DEVICE void load_several(Several<T, kCount>& to, const void* values, std::int64_t first) {
  to = *reinterpret_cast<const Several<T, kCount>*>(static_cast<const T*>(values) + first);
}

LARDER_DEVICE int byte_of(std::uint32_t word, int i) {
  return static_cast<std::int8_t>(word >> (8 * i));
}

// A format of codes: value = scale * (code - kOffset) [+ minimum]. lane: the output within its
// panel; g counts groups of kGroup columns.
template <PackedFormat kFormat, bool kMin>
struct CodeFormat {
  static constexpr PackedShape kShape = packed_shape(kFormat, kMin);
  static constexpr int kGroup = kShape.group_cols;
  static constexpr int kPairs = kGroup / 8;
  static constexpr int kBits = kShape.code_bits;
  static constexpr bool kHasMin = kMin;
  // As the codes come from load_pair(): those of 8 bits are signed already.
  static constexpr int kOffset = kMin || kBits == 8 ? 0 : 1 << (kBits - 1);
  static constexpr int kGroupsPerChunk = kShape.chunk_cols / kGroup;
  static constexpr int kGroupBytes = kGroup * kPanelRows * kBits / 8;
  static constexpr int kLoadOutputs = 4;
  static constexpr int kLoadCols = 8;

  // Unsigned, so that the compiler sees which groups lie in one chunk.
  static LARDER_MEMBER const std::uint8_t* chunk(const std::byte* panel, int g) {
    return reinterpret_cast<const std::uint8_t*>(panel) +
           std::int64_t{static_cast<unsigned>(g) / kGroupsPerChunk} * kShape.chunk_bytes;
  }
  static LARDER_MEMBER int group_in_chunk(int g) {
    return static_cast<int>(static_cast<unsigned>(g) % kGroupsPerChunk);
  }
  static LARDER_MEMBER const std::uint32_t* codes(const std::byte* panel, int g, int lane) {
    return reinterpret_cast<const std::uint32_t*>(chunk(panel, g) + kShape.code_offset +
                                                  group_in_chunk(g) * kGroupBytes) +
           lane;
  }
  // The codes from group g on, 16 bytes each: four are a row, a word of each output.
  static LARDER_MEMBER const Words4* pieces(const std::byte* panel, int g) {
    return reinterpret_cast<const Words4*>(codes(panel, g, 0));
  }
  // Quads 2 * pair and 2 * pair + 1 of a group, four codes each, bytes. Of 8 bits, first and second
  // are the two; below, first has both's lower bits and second the upper ones of the whole group.
  static LARDER_MEMBER void unpack(std::uint32_t first, std::uint32_t second, int pair,
                                   std::uint32_t* quads) {
    if constexpr (kBits == 8) {
      quads[0] = first ^ 0x80808080U;
      quads[1] = second ^ 0x80808080U;
    } else {
      quads[0] = first & 0x0F0F0F0FU;
      quads[1] = first >> 4 & 0x0F0F0F0FU;
      if constexpr (kBits > 4) {
        constexpr int kUpper = kBits - 4;
        constexpr std::uint32_t kMask = 0x01010101U * ((1U << kUpper) - 1);
        const std::uint32_t upper = second >> (2 * pair * kUpper);
        quads[0] |= (upper & kMask) << 4;
        quads[1] |= (upper >> kUpper & kMask) << 4;
      }
    }
  }
  // The rows of a group in which unpack()'s words lie.
  static LARDER_MEMBER int first_row(int pair) { return kBits == 8 ? 2 * pair : pair; }
  static LARDER_MEMBER int second_row(int pair) {
    return kBits == 8 ? 2 * pair + 1 : kBits == 4 ? pair : kGroup / 8;
  }
  // Of the group whose codes() these are.
  static LARDER_MEMBER void load_pair(const std::uint32_t* codes, int pair, std::uint32_t* quads) {
    unpack(codes[first_row(pair) * kPanelRows], codes[second_row(pair) * kPanelRows], pair, quads);
  }

  // Scales and minima of kOutputs outputs, as they lie in memory: each array's by one load.
  template <int kOutputs>
  struct Scales {
    template <class T>
    using Array = Several<T, kOutputs>;
    using Half = std::uint16_t;
    Array<std::conditional_t<kShape.two_level, std::int8_t, Half>> scale_code;
    Array<std::conditional_t<kShape.two_level, std::uint8_t, Half>> min_code;
    Array<Half> super_scale, super_min;

    LARDER_MEMBER void load(const std::byte* panel, int g, int lane) {
      const std::uint8_t* base = chunk(panel, g);
      const int at = group_in_chunk(g) * kPanelRows + lane;
      load_several(scale_code, base + kShape.scale_offset, at);
      if constexpr (kMin) load_several(min_code, base + kShape.min_offset, at);
      if constexpr (kShape.two_level) {
        load_several(super_scale, base + kShape.super_offset, lane);
        if constexpr (kMin) load_several(super_min, base + kShape.super_offset, kPanelRows + lane);
      }
    }
    LARDER_MEMBER float scale(int i) const {
      if constexpr (kShape.two_level)
        return half_value(super_scale.value[i]) * static_cast<float>(scale_code.value[i]);
      else
        return half_value(scale_code.value[i]);
    }
    // 0 where the format has none.
    LARDER_MEMBER float minimum(int i) const {
      if constexpr (!kMin)
        return 0;
      else if constexpr (kShape.two_level)  // from 0, so that no zero is negative
        return 0.0F - half_value(super_min.value[i]) * static_cast<float>(min_code.value[i]);
      else
        return half_value(min_code.value[i]);
    }
  };

  // Exact but for the minimum's sum.
  static LARDER_MEMBER float value(int code, float scale, float minimum) {
    const float value = scale * static_cast<float>(code - kOffset);
    if constexpr (kMin) return value + minimum;
    return value;
  }
  // kLoadCols columns of kLoadOutputs outputs as they lie in memory, 16 bytes a load.
  struct Columns {
    Words4 first, second;
    Scales<kLoadOutputs> scales;
    int pair;

    // col: a multiple of kLoadCols; lane: the first output.
    LARDER_MEMBER void load(const std::byte* panel, int col, int lane) {
      const int g = col / kGroup;
      pair = col % kGroup / 8;
      first = pieces(panel, g)[(first_row(pair) * kPanelRows + lane) / 4];
      second = pieces(panel, g)[(second_row(pair) * kPanelRows + lane) / 4];
      scales.load(panel, g, lane);
    }
    LARDER_MEMBER void unpack_to(float (&values)[kLoadCols][kLoadOutputs]) const {
      LARDER_UNROLL
      for (int j = 0; j < kLoadOutputs; ++j) {
        std::uint32_t quads[2];
        unpack(static_cast<std::uint32_t>(first.word[j]),
               static_cast<std::uint32_t>(second.word[j]), pair, quads);
        LARDER_UNROLL
        for (int i = 0; i < kLoadCols; ++i)
          values[i][j] =
              value(byte_of(quads[i / 4], i % 4), scales.scale(j), scales.minimum(j));
      }
    }
  };
};

// A format of values.
template <PackedFormat kFormat>
struct ValueFormat {
  static constexpr PackedFormat kValue = kFormat;
  static constexpr int kLoadOutputs = 4;
  static constexpr int kLoadCols = 8;

  static LARDER_MEMBER float value(const std::byte* panel, int col, int lane) {
    if constexpr (kFormat == PackedFormat::kF32) {
      return reinterpret_cast<const float*>(panel)[std::int64_t{col} * kPanelRows + lane];
    } else {
      const auto* halves = reinterpret_cast<const std::uint16_t*>(panel);
      if constexpr (kFormat == PackedFormat::kF16)
        return half_value(halves[std::int64_t{col} * kPanelRows + lane]);
      else
        return bf16_value(halves[std::int64_t{col / 2} * 2 * kPanelRows + lane * 2 + col % 2]);
    }
  }

  // As CodeFormat's; products of 16 bits have their own (matmul_bf16.cu).
  struct Columns {
    static_assert(kFormat == PackedFormat::kF32);
    Words4 row[kLoadCols];

    LARDER_MEMBER void load(const std::byte* panel, int col, int lane) {
      constexpr int kPieces = kPanelRows / kLoadOutputs;  // of a column
      const auto* pieces = reinterpret_cast<const Words4*>(panel);
      LARDER_UNROLL
      for (int i = 0; i < kLoadCols; ++i)
        row[i] = pieces[std::int64_t{col + i} * kPieces + lane / kLoadOutputs];
    }
    LARDER_MEMBER void unpack_to(float (&values)[kLoadCols][kLoadOutputs]) const {
      LARDER_UNROLL
      for (int i = 0; i < kLoadCols; ++i)
        LARDER_UNROLL
        for (int j = 0; j < kLoadOutputs; ++j) values[i][j] = as_float(static_cast<std::uint32_t>(row[i].word[j]));
    }
  };
};

// Calls function.template operator()<Format>() for the format of w.
template <class Function>
void with_format(const PackedMatrix& w, const Function& function) {
  if (with_code_format<CodeFormat, false>(w, function)) return;
  if (w.format == PackedFormat::kF32) {
    function.template operator()<ValueFormat<PackedFormat::kF32>>();
  } else if (w.format == PackedFormat::kF16) {
    function.template operator()<ValueFormat<PackedFormat::kF16>>();
  } else {
    function.template operator()<ValueFormat<PackedFormat::kBF16>>();
  }
}

// One value of a row.
template <class Format>
LARDER_DEVICE float weight_at(const std::byte* panel, int col, int lane) {
  if constexpr (requires { Format::kValue; }) {
    return Format::value(panel, col, lane);
  } else {
    const int g = col / Format::kGroup;
    const int quad = col % Format::kGroup / 4;
    std::uint32_t quads[2];
    Format::load_pair(Format::codes(panel, g, lane), quad / 2, quads);
    typename Format::template Scales<1> scales;
    scales.load(panel, g, lane);
    return Format::value(byte_of(quad % 2 == 0 ? quads[0] : quads[1], col % 4), scales.scale(0),
                         scales.minimum(0));
  }
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
