// Which experts a token takes.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace larder {

inline constexpr int kMaxExperts = 1024;  // of a layer

// scores, bias: [num_experts]; bias decides who is chosen, never with what weight, or is null.
// chosen: [num_chosen], ascending; weights: theirs. Of equals the first is chosen.
// Source: Mixtral (arXiv:2401.04088), DeepSeek-V3 (arXiv:2412.19437, section 2.1.2).
void choose_experts(const ExpertConfig& experts, const float* scores, const float* bias,
                    std::int32_t* chosen, float* weights);

}  // namespace larder
