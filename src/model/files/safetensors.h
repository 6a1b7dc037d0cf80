// Reader of safetensors files: a length, a JSON header that names the tensors, their bytes.
//
// Any bytes may come in: whatever is malformed is refused with the tensor and the reason before memory is taken for
// it. Tensors are views into the file's bytes. Source: the published description of the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/ggml_types.h"

namespace larder {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;              // as the header has it
  std::optional<GgmlType> type;   // nullopt: a type that Larder computes nothing with
  std::vector<std::int64_t> shape;  // outermost first; each 0 or more
  std::span<const std::byte> data;
};

// The tensors in the order of their bytes. They point into bytes. Throws Error{kInvalidArgument}.
std::vector<SafetensorsTensor> read_safetensors(std::span<const std::byte> bytes);

}  // namespace larder
