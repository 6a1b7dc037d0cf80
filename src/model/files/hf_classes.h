// The classes of models that transformers keeps in folders: a row of a table for each, with what its folders have in a
// way of their own. What the models are, their families in GGUF files tell (families.h).
#pragma once

#include <span>
#include <string_view>

#include "model/families.h"

namespace larder {

// What sliding_window says.
enum class HfWindows {
  kMaybe,            // a size, where there are windows
  kNone,             // nothing: a size is refused
  kNoneUsed,         // nothing that counts: use_sliding_window is refused
  kNeeded,           // a size
  kSaid,             // a size, or null for none; it is not left out
  kSaidUnlessTyped,  // the same, where layer_types are left out
  kUpper,            // a size, where use_sliding_window has the layers from max_window_layers on see windows
};

// The keys of experts and the names of their tensors, each by the first that had them.
enum class HfExperts { kNone, kMixtral, kQwen, kDeepSeek, kGptOss };

struct HfClass {
  std::string_view name;          // in architectures
  std::string_view architecture;  // the family's name

  // Heads and their rotations.
  bool may_leave_out_kv_heads = false;  // there are as many as heads then
  bool needs_head_dim = false;          // else it follows from hidden_size
  bool has_query_scalar = false;        // query_pre_attn_scalar, whose root scores are divided by
  bool turns_halves = false;            // where files of the family have rows of Q and K in the order of pairs
  bool needs_base = false;              // a file without rope_theta is refused: the class has one of its own
  double base = 10000;                  // of the rotations, where the file does not say
  bool needs_scaling = false;           // a file without rope_scaling is refused, likewise
  bool may_turn_part = false;           // of a head
  double turned_part = 1;               // where the file does not say
  bool has_old_longrope_names = false;  // su and yarn
  bool may_say_original_len = false;    // where nothing is stretched, too

  // Windows.
  HfWindows windows = HfWindows::kMaybe;
  bool uses_windows = true;           // where use_sliding_window is left out
  bool may_say_window_twice = false;  // as sliding_window_size, too
  bool says_pattern = false;          // sliding_window_pattern; else the family's counts
  bool needs_layer_types = false;     // where there are windows

  // Tensors.
  bool calls_bias_qkv = false;       // qkv_bias says whether there are biases, else attention_bias
  bool has_bias_by_default = false;  // where a model may have it or not
  bool says_qk_norm = false;         // use_qk_norm, of what the family always has
  bool joins_qkv = false;            // rows of Q, K and V lie in one matrix
  bool has_glm_norms = false;        // post-norms with other names than Gemma's
  bool norms_add_one = false;        // norms multiply by 1 + the weight, which GGUF files have done already
  HfExperts experts = HfExperts::kNone;

  // The rest.
  bool ties_by_default = false;  // the embedding is the output matrix where the file does not say
  bool may_name_code = false;    // auto_map names the authors' code for the class that transformers has, too

  const Family& family() const { return *find_family(architecture); }
};

std::span<const HfClass> hf_classes();

}  // namespace larder
