// Small files for the tests of ModelConfig.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/error.h"
#include "model/files/gguf_builder.h"
#include "model/model_config.h"

namespace larder {

inline GgufBuilder small_model(const std::string& arch, std::string_view name = "small") {
  GgufBuilder builder;
  builder.add_string("general.architecture", arch)
      .add_string("general.name", name)
      .add_uint(arch + ".embedding_length", 64)
      .add_uint(arch + ".context_length", 2048)
      .add_uint(arch + ".attention.head_count", 4)
      .add_float(arch + ".attention.layer_norm_rms_epsilon", 1e-5f)
      .add_tensor("token_embd.weight", {64, 10}, GgmlType::kF32, 2560);
  return builder;
}

inline GgufBuilder small_llama(std::string_view name = "small") {
  return small_model("llama", name)
      .add_uint("llama.block_count", 2)
      .add_uint("llama.feed_forward_length", 128);
}

inline ModelConfig read(const GgufBuilder& builder) {
  const auto bytes = builder.build();
  return read_model_config(GgufFile(bytes));
}

inline std::string error_of(const GgufBuilder& builder) {
  try {
    read(builder);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
}

}  // namespace larder
