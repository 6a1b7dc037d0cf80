// Any bytes as a model file: refused with an Error, or read.
#include <span>

#include "fuzz_target.h"
#include "model/forward/weights.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/vocabulary.h"
#include "refuse_or.h"

namespace {

// Whether it is a model.
bool read_all(const larder::GgufFile& file) {
  const bool has_weights = refuse_or([&] {
    const larder::ModelConfig config = larder::read_model_config(file);
    larder::weights_size_bytes(config, file);
  });
  const bool has_vocabulary = refuse_or([&] { larder::read_vocabulary(file); });
  const bool has_template = refuse_or([&] { larder::read_chat_template(file); });
  for (const larder::GgufTensor& tensor : file.tensors()) {
    const std::int64_t num_values = tensor.num_cols() * tensor.num_rows();
    if (num_values > 4096 || num_values < 1) continue;
    float values[4096];
    larder::dequantize_row(tensor.type, tensor.data.data(), values, num_values);
  }
  return has_weights && has_vocabulary && has_template;
}

}  // namespace

bool try_input(const std::uint8_t* data, std::size_t size) {
  bool is_model = false;
  refuse_or([&] { is_model = read_all(larder::GgufFile(std::as_bytes(std::span(data, size)))); });
  return is_model;
}
