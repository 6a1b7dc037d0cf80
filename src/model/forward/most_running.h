// How many sequences run at once, by what a step has.
#pragma once

#include <algorithm>

namespace larder {

// At most: fewer than a step has rows, so that a prompt always gets one of them. Of a step with logits of one row, one.
constexpr int most_running(int max_batch_tokens, int max_logit_rows) {
  return max_logit_rows > 1 ? std::max(1, max_batch_tokens - 1) : 1;
}

}  // namespace larder
