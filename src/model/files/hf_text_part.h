// The text model in the folder of one that reads images, too.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/files/safetensors.h"

namespace larder {

// Whether config.json is of such a model, Gemma 3 or Mistral 3.
bool has_text_part(const nlohmann::json& config);

// The configuration of the text model, as it would stand in a folder of its own. path: of config.json, for messages.
// Throws Error{kInvalidArgument} naming the key.
nlohmann::json read_text_part(const std::string& path, const nlohmann::json& config);

// Leaves the text model's tensors, by the names that they would have in a folder of its own.
void take_text_tensors(std::vector<SafetensorsTensor>& tensors);

}  // namespace larder
