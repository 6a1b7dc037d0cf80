#include "model/forward/mxfp4_parts.h"

#include "base/error.h"

namespace larder {
namespace {

constexpr std::size_t kBlockCols = 32, kNumberBytes = 16, kBlockBytes = 17;

// Of neighbours in a byte to numbers that lie 16 apart.
void join_block(const std::byte* numbers, std::byte scale, std::byte* block) {
  block[0] = scale;
  const auto number = [&](std::size_t i) {
    return i % 2 == 0 ? numbers[i / 2] & std::byte{15} : numbers[i / 2] >> 4;
  };
  for (std::size_t i = 0; i < kNumberBytes; ++i) block[1 + i] = number(i) | number(i + kNumberBytes) << 4;
}

}  // namespace

std::size_t mxfp4_size_bytes(int num_rows, int num_cols) {
  return static_cast<std::size_t>(num_rows) * (static_cast<std::size_t>(num_cols) / kBlockCols * kBlockBytes);
}

void join_mxfp4(const Mxfp4Parts& parts, int num_rows, int num_cols, std::byte* blocks, ThreadPool& pool) {
  const auto rows = static_cast<std::size_t>(num_rows);
  const std::size_t row_blocks = static_cast<std::size_t>(num_cols) / kBlockCols;
  const auto has_step = [&](std::size_t step) {
    const std::size_t span_blocks = ((rows - 1) * step + 1) * row_blocks;
    return parts.scales.size() == span_blocks && parts.numbers.size() == span_blocks * kNumberBytes;
  };
  if (num_rows < 1 || static_cast<std::size_t>(num_cols) % kBlockCols != 0 || !(has_step(1) || has_step(2)))
    throw_invalid("MXFP4 of {} rows of {}: {} bytes of numbers and {} of scales do not go with it", num_rows, num_cols,
                  parts.numbers.size(), parts.scales.size());
  const std::size_t step = has_step(1) ? 1 : 2;
  pool.parallel_for(num_rows, [&](int row, int) {
    const std::size_t from = static_cast<std::size_t>(row) * step * row_blocks;
    std::byte* to = blocks + static_cast<std::size_t>(row) * row_blocks * kBlockBytes;
    for (std::size_t i = 0; i < row_blocks; ++i)
      join_block(parts.numbers.data() + (from + i) * kNumberBytes, parts.scales[from + i], to + i * kBlockBytes);
  });
}

}  // namespace larder
