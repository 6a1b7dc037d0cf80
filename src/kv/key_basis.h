// The basis in which keys are stored as codes.
#pragma once

#include <cstdint>
#include <vector>

namespace larder {

// Of one layer, [num_kv_heads, head_dim] both; see PagedKvView.
struct KeyBasis {
  std::vector<float> balance;
  std::vector<std::int16_t> order;
};

}  // namespace larder
