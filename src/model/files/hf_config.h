// config.json of a model's folder -> the metadata of the GGUF file that the model would be converted to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/files/gguf_builder.h"
#include "model/files/hf_classes.h"
#include "model/files/hf_rope.h"

namespace larder {

struct HfConfig {
  const HfClass* hf_class = nullptr;
  int num_layers = 0;
  int num_experts = 0;  // 0 = none
  int num_dense = 0;    // of the first layers, which have none
  int num_left_out = 0;  // behind the layers, see ModelConfig
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  bool tied_embeddings = false;
  HfRope rope;
};

// path: of config.json, for messages. Adds to metadata what read_model_config() reads. Throws Error{kInvalidArgument}
// that names the key where something is missing, or would have the model compute what Larder does not.
HfConfig read_hf_config(const std::string& path, const nlohmann::json& json, GgufBuilder& metadata);

}  // namespace larder
