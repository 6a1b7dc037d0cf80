// A tiny model's file with its matrices as codes, for tests: the golden ones are in FP32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "model/gguf.h"

namespace larder {

// Matrices of FP32 whose rows are whole groups of 32 become Q8_0; kF32: none do.
class ModelInCodes {
 public:
  ModelInCodes(const std::string& path, GgmlType type) : file_(path), gguf_(file_.bytes()) {
    if (type == GgmlType::kF32) return;
    for (const GgufTensor& tensor : gguf_.tensors())
      if (tensor.num_dims >= 2 && tensor.type == GgmlType::kF32 && tensor.num_cols() % 32 == 0)
        round(const_cast<GgufTensor&>(tensor));
  }

  const GgufFile& gguf() const { return gguf_; }

 private:
  // Scales are powers of two, whose FP16 is easily written.
  void round(GgufTensor& tensor) {
    const auto count = static_cast<std::size_t>(tensor.num_cols() * tensor.num_rows());
    std::vector<float> values(count);
    std::memcpy(values.data(), tensor.data.data(), count * sizeof(float));
    std::vector<std::byte>& bytes = bytes_.emplace_back();
    for (std::size_t i = 0; i < count; i += 32) {
      float largest = 1e-4F;
      for (std::size_t k = 0; k < 32; ++k) largest = std::max(largest, std::abs(values[i + k]));
      const int exponent = std::clamp(static_cast<int>(std::ceil(std::log2(largest / 127))), -14, 15);
      const auto scale = static_cast<std::uint16_t>((exponent + 15) << 10);
      const auto* of_scale = reinterpret_cast<const std::byte*>(&scale);
      bytes.insert(bytes.end(), of_scale, of_scale + sizeof scale);
      for (std::size_t k = 0; k < 32; ++k) {
        const float code = std::clamp(std::round(std::ldexp(values[i + k], -exponent)), -127.0F, 127.0F);
        bytes.push_back(static_cast<std::byte>(static_cast<std::int8_t>(code)));
      }
    }
    tensor.type = GgmlType::kQ8_0;
    tensor.data = bytes;
  }

  MappedFile file_;
  GgufFile gguf_;
  std::deque<std::vector<std::byte>> bytes_;
};

}  // namespace larder
