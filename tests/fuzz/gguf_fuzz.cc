// Any bytes as a model file: refused with an Error, or read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/vocabulary.h"
#include "model/weights.h"

namespace {

template <class Function>
void refuse_or(Function&& function) {
  try {
    function();
  } catch (const larder::Error& error) {
    if (error.kind() != larder::ErrorKind::kInvalidArgument) std::abort();
  }
}

void read_all(const larder::GgufFile& file) {
  refuse_or([&] {
    const larder::ModelConfig config = larder::read_model_config(file);
    larder::weights_size_bytes(config, file);
  });
  refuse_or([&] { larder::read_vocabulary(file); });
  refuse_or([&] { larder::read_chat_template(file); });
  for (const larder::GgufTensor& tensor : file.tensors()) {
    const std::int64_t num_values = tensor.num_cols() * tensor.num_rows();
    if (num_values > 4096 || num_values < 1) continue;
    float values[4096];
    larder::dequantize_row(tensor.type, tensor.data.data(), values, num_values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  refuse_or([&] { read_all(larder::GgufFile(std::as_bytes(std::span(data, size)))); });
  return 0;
}
