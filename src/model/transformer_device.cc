// What the forward pass does on a device alone.
#include "model/transformer.h"

namespace larder {

Logits Transformer::take_from_device(int num_rows, bool wants_logits) {
  if (num_rows == 0) {
    // The caller takes the time of a step, and that it has been computed when this returns.
    device_->synchronize();
    return {};
  }
  const auto rows = static_cast<std::size_t>(num_rows);
  const std::size_t count = rows * static_cast<std::size_t>(config_.vocab_size);
  if (wants_logits)
    device_->copy_out(logits_.get(), reinterpret_cast<const std::byte*>(buffers_.logits),
                      count * sizeof(float));
  device_->copy_out(best_.get(), reinterpret_cast<const std::byte*>(buffers_.best),
                    rows * sizeof(TokenId));
  return {{reinterpret_cast<const float*>(logits_.get()), wants_logits ? count : 0},
          {},
          {reinterpret_cast<const TokenId*>(best_.get()), rows}};
}

}  // namespace larder
