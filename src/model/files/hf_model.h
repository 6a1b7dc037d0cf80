// A model as Hugging Face keeps it: a folder with config.json, *.safetensors and tokenizer.json.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/files/hf_tensors.h"
#include "model/gguf.h"

namespace larder {

// What the folder says, as the GGUF file that it would be converted to: metadata of the same keys, tensors of the same
// names, which are the folder's bytes as they lie there. Rows of Q and K stay in their order, which the key
// larder.rope.halves tells. Immutable; its parts point into one another, so it is not moved.
struct HfModel {
  // folder: its path. Throws, naming file and field, Error{kNotFound} where a file is missing and
  // Error{kInvalidArgument} where one is malformed, or has what Larder does not compute.
  explicit HfModel(const std::string& folder);
  HfModel(const HfModel&) = delete;

  // Those that decide what is computed: config.json, and the weights by name.
  std::vector<MappedFile> files;
  std::vector<std::byte> metadata;
  HfOwned owned;
  std::unique_ptr<GgufFile> gguf;
};

}  // namespace larder
