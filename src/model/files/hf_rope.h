// rope_parameters, or rope_theta and rope_scaling, of a config.json.
#pragma once

#include <string>
#include <vector>

#include "model/files/gguf_builder.h"
#include "model/files/hf_classes.h"
#include "model/files/hf_json.h"

namespace larder {

// What the frequencies are divided by, where the rotation has such: [rope_dim / 2] or empty.
struct HfRope {
  std::vector<float> divisors;                       // Llama 3's, for rope_freqs.weight
  std::vector<float> long_divisors, short_divisors;  // LongRoPE's, for rope_factors_long.weight and _short
};

// Throws Error{kInvalidArgument} naming the key.
HfRope read_hf_rope(const HfObject& config, const HfClass& hf_class, int head_dim, GgufBuilder& metadata);

}  // namespace larder
