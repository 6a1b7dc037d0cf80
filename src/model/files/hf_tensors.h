// The tensors of a model's folder by the names that GGUF files have.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "model/files/hf_config.h"
#include "model/files/safetensors.h"
#include "model/gguf.h"

namespace larder {

// What no file has as it is needed, and the names: GgufFile's tensors point here. Addresses are stable.
struct HfOwned {
  std::deque<std::string> names;
  std::deque<std::vector<float>> values;
};

// Adds to gguf all tensors of a model. Both tensors' bytes and owned must outlive it. Throws Error{kInvalidArgument}
// naming a tensor that is missing, of a type that is not read, or not one of such a model.
void add_hf_tensors(const HfConfig& config, std::span<const SafetensorsTensor> tensors, HfOwned& owned, GgufFile& gguf);

}  // namespace larder
