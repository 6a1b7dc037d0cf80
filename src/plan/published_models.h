// Shapes of models that are published, so that they can be planned for without their files.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model_shape.h"

namespace larder {

// In the order in which `larder plan --list` prints them.
std::vector<std::string> published_model_names();

// "Llama 3 8B", "llama-3-8b" and "LLAMA3_8B" alike: only letters and digits count.
std::optional<ModelShape> find_published_model(std::string_view name);
// The format that it is published in.
WeightFormat published_weight_format(std::string_view name);

// The names that share most with a word that is none of them, for an error's text.
std::vector<std::string> similar_model_names(std::string_view name);

}  // namespace larder
