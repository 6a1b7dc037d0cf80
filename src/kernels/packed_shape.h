// Where the parts of a packed panel lie. See PackedFormat. Inside this folder only.
#pragma once

#include "kernels/kernels.h"

namespace larder {

// A panel is a row of chunks, each complete: scales, minima and super scales of its columns, then
// codes, so that a matrix is one stream from memory and read in order: a group needs its scales as
// soon as its codes. The last chunk is filled up with zeros.
struct PackedShape {
  int chunk_cols = 0;
  int group_cols = 0;   // columns that share a scale; 0: values, not codes
  int code_bits = 0;    // also of a value
  int scale_bytes = 0;  // of one scale or minimum
  bool two_level = false;
  int scale_offset = 0;  // in bytes from the chunk's start
  int min_offset = 0;
  int super_offset = 0;  // [16] f16 scales, then when has_min [16] f16 minima
  int code_offset = 0;   // also of values
  int chunk_bytes = 0;
};

// What kMxFp4's codes stand for, which are numbers of a sign, two bits of exponent and one of mantissa (E2M1): twice the
// number, and an offset.
static constexpr int kE2m1Offset = 12;
alignas(16) static constexpr std::uint8_t kE2m1Levels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// And those of kIq4 and kIq4K: the table of ggml's IQ4_NL, and an offset.
static constexpr int kIq4Offset = 128;
alignas(16) static constexpr std::uint8_t kIq4Levels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                            129, 141, 153, 166, 181, 197, 217, 241};

// What a format's codes stand for; null: for themselves.
static constexpr const std::uint8_t* levels_of(PackedFormat format) {
  if (format == PackedFormat::kMxFp4) return kE2m1Levels;
  return format == PackedFormat::kIq4 || format == PackedFormat::kIq4K ? kIq4Levels : nullptr;
}

// static: an inline function could be given to a program in the form that another instruction set
// got.
static constexpr PackedShape packed_shape(PackedFormat format, bool has_min) {
  PackedShape shape;
  switch (format) {
    case PackedFormat::kF32:
      shape = {2, 0, 32};
      break;
    case PackedFormat::kF16:
      shape = {2, 0, 16};
      break;
    case PackedFormat::kBF16:
      shape = {2, 0, 16};
      break;
    case PackedFormat::kW4:
    case PackedFormat::kIq4:
      shape = {64, 32, 4, 2};
      break;
    case PackedFormat::kW4K:
    case PackedFormat::kIq4K:
      shape = {256, 32, 4, 1, true};
      break;
    case PackedFormat::kW4Fine:
      shape = {256, 16, 4, 1, true};
      break;
    case PackedFormat::kW5:
      shape = {64, 32, 5, 2};
      break;
    case PackedFormat::kW5K:
      shape = {256, 32, 5, 1, true};
      break;
    case PackedFormat::kW6Fine:
      shape = {256, 16, 6, 1, true};
      break;
    case PackedFormat::kW8:
      shape = {64, 32, 8, 2};
      break;
    case PackedFormat::kMxFp4:
      shape = {128, 32, 4, 1};
      break;
  }
  int end = 0;
  if (shape.group_cols > 0) {
    const int array_bytes = shape.chunk_cols / shape.group_cols * kPanelRows * shape.scale_bytes;
    shape.scale_offset = end;
    end += array_bytes;
    if (has_min) {
      shape.min_offset = end;
      end += array_bytes;
    }
    if (shape.two_level) {
      shape.super_offset = end;
      end += kPanelRows * 2 * (has_min ? 2 : 1);
    }
  }
  shape.code_offset = (end + 63) / 64 * 64;
  shape.chunk_bytes =
      shape.code_offset + (shape.chunk_cols * kPanelRows * shape.code_bits / 8 + 63) / 64 * 64;
  return shape;
}

// Calls function.template operator()<Format>() for the CodeFormat of w if it holds codes; false
// otherwise. Its callers' lambdas keep an instruction set's copies apart. kTakesLevels: a device has no such formats.
template <template <PackedFormat, bool> class CodeFormat, bool kTakesLevels = true, class Function>
[[gnu::always_inline]] static inline bool with_code_format(const PackedMatrix& w,
                                                           const Function& function) {
  using enum PackedFormat;
  const auto call = [&]<PackedFormat kFormat>() __attribute__((always_inline)) {
    if (w.has_min)
      function.template operator()<CodeFormat<kFormat, true>>();
    else
      function.template operator()<CodeFormat<kFormat, false>>();
  };
  switch (w.format) {
    case kW4:
      call.template operator()<kW4>();
      return true;
    case kW4K:
      function.template operator()<CodeFormat<kW4K, true>>();
      return true;
    case kW4Fine:
      call.template operator()<kW4Fine>();
      return true;
    case kW5:
      call.template operator()<kW5>();
      return true;
    case kW5K:
      function.template operator()<CodeFormat<kW5K, true>>();
      return true;
    case kW6Fine:
      function.template operator()<CodeFormat<kW6Fine, false>>();
      return true;
    case kW8:
      function.template operator()<CodeFormat<kW8, false>>();
      return true;
    case kMxFp4:
      if constexpr (kTakesLevels) function.template operator()<CodeFormat<kMxFp4, false>>();
      return kTakesLevels;
    case kIq4:
      if constexpr (kTakesLevels) function.template operator()<CodeFormat<kIq4, false>>();
      return kTakesLevels;
    case kIq4K:
      if constexpr (kTakesLevels) function.template operator()<CodeFormat<kIq4K, false>>();
      return kTakesLevels;
    case kF32:
    case kF16:
    case kBF16:
      break;
  }
  return false;
}

}  // namespace larder
