// rope_parameters, or rope_theta and rope_scaling, of a config.json.
#pragma once

#include <string>
#include <vector>

#include "model/gguf_builder.h"
#include "model/hf_json.h"

namespace larder {

// prefix: of GGUF's keys. Returns the divisors of Llama 3's rotation; empty = another. Throws
// Error{kInvalidArgument} naming the key.
std::vector<float> read_hf_rope(const HfObject& config, const std::string& prefix, int head_dim, GgufBuilder& metadata);

}  // namespace larder
