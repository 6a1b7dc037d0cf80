// The basis in which keys are stored with 4 bits.
#pragma once

#include <cstdint>
#include <vector>

namespace larder {

// Of one layer, [num_kv_heads, head_dim] both; see PagedKvView. Empty = keys as they are.
struct KeyBasis {
  std::vector<float> balance;
  std::vector<std::int16_t> order;
};

}  // namespace larder
