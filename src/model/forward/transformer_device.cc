// What the forward pass does on a device alone.
#include "model/forward/transformer.h"

namespace larder {

// Of the rows [begin, end).
void Transformer::copy_logits(int begin, int end) {
  const std::size_t row_bytes = static_cast<std::size_t>(config_.vocab_size) * sizeof(float);
  const std::size_t offset = static_cast<std::size_t>(begin) * row_bytes;
  device_->copy_out(logits_.get() + offset, reinterpret_cast<const std::byte*>(buffers_.logits) + offset,
                    static_cast<std::size_t>(end - begin) * row_bytes);
}

Logits Transformer::take_from_device(const ForwardBatch& given, int num_rows) {
  if (num_rows == 0) {
    // The caller takes the time of a step, and that it has been computed when this returns.
    device_->synchronize();
    return {};
  }
  const auto rows = static_cast<std::size_t>(num_rows);
  if (!given.read_logits) {
    copy_logits(0, num_rows);
  } else {
    const std::span<const std::int32_t> read = *given.read_logits;
    for (std::size_t begin = 0, end = 0; begin < read.size(); begin = end) {
      do ++end;
      while (end < read.size() && read[end] == read[end - 1] + 1);
      copy_logits(read[begin], read[end - 1] + 1);
    }
  }
  const std::size_t num_draws = given.draws.size();
  device_->copy_out(best_.get(), reinterpret_cast<const std::byte*>(buffers_.best),
                    (rows + num_draws) * sizeof(TokenId));
  const bool are_read = !given.read_logits || !given.read_logits->empty();
  const auto* best = reinterpret_cast<const TokenId*>(best_.get());
  return {.values = {reinterpret_cast<const float*>(logits_.get()),
                     are_read ? rows * static_cast<std::size_t>(config_.vocab_size) : 0},
          .maxima = {},
          .best = {best, rows},
          .drawn = {best + rows, num_draws}};
}

}  // namespace larder
