// The tokenizer and the chat template of a model's folder -> the metadata of the GGUF file that it would be converted to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/files/gguf_builder.h"

namespace larder {

// config: the model's config.json. num_rows: of the embedding. Adds to metadata what read_vocabulary() and
// read_chat_template() read. Throws Error{kInvalidArgument} naming file and field.
void add_hf_tokenizer(const std::string& folder, const nlohmann::json& config, std::size_t num_rows,
                      GgufBuilder& metadata);

}  // namespace larder
