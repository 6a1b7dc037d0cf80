// Rotations of a model's layers, as its file describes them. For model_config.cc.
#pragma once

#include <string_view>
#include <vector>

#include "model/config_reader.h"
#include "model/model_config.h"

namespace larder {

// Whether read_global_rope() reads the tensor.
bool is_rope_tensor(std::string_view name);

// Radians per position without any scaling: base^(-2i / rope_dim).
std::vector<double> plain_frequencies(double base, int rope_dim);

// What YaRN as DeepSeek has it multiplies scores by: (1 + 0.1 mscale_all_dim ln factor)^2; the key is that less ln factor.
double yarn_score_scale(const ConfigReader& reader, double factor);

// The rotation of the layers that see the whole context. longest_len: of the sequences to come, see
// read_model_config(). Throws Error{kInvalidArgument} naming the field.
RopeConfig read_global_rope(const ConfigReader& reader, int rope_dim, int longest_len);

}  // namespace larder
