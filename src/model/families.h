// What the families of models are, beyond what their files say: a row of a table for each. Nothing else in the folder
// tells one from another by its name.
#pragma once

#include <string_view>

#include "model/gguf.h"
#include "model/model_config.h"

namespace larder {

enum class Presence { kNever, kMaybe, kAlways };  // kMaybe: the file tells

// What rope.scaling.yarn_log_multiplier changes: nothing, and it is refused; the scores; what is on cos and sin.
enum class YarnMultiplier { kNone, kOnScores, kOnMagnitude };

// Layers whose queries and keys do not turn, where the file does not say which: none, every fourth, or those that see
// all where others see a window.
enum class StillLayers { kNone, kEveryFourth, kWithoutWindow };

struct Family {
  std::string_view name;  // general.architecture

  // Rotations.
  bool rope_interleaved = false;        // see ModelConfig
  bool may_have_rope_sections = false;  // pairs may turn by a picture's rows and columns, too, and are halves then
  bool rounds_ramp = true;              // YaRN's ramp is between whole pairs
  YarnMultiplier yarn_multiplier = YarnMultiplier::kNone;
  bool has_local_rope = false;  // the layers with windows turn by a base of their own
  double local_base = 0;        // that, where the file does not say; 0 = the other layers'
  StillLayers still_layers = StillLayers::kNone;

  // Windows.
  bool needs_window = false;      // a file that says none is refused
  bool may_say_window_0 = false;  // which is none
  int default_window = 0;         // where the file does not say; 0 = there is none then
  // Where there are windows: every so many layers one has none, where the file does not say which; 0 = all have one.
  int window_pattern = 0;

  // Attention.
  Presence qkv_bias = Presence::kNever;
  Presence qk_norm = Presence::kNever;
  bool norms_heads_together = false;  // see ModelConfig
  bool has_output_bias = false;
  bool has_sink_scores = false;
  bool has_latent = false;       // see LatentConfig
  bool has_temperature = false;  // see TemperatureConfig
  float score_cap = 0;           // where the file does not say; 0 = the family has none
  float logit_cap = 0;           // the same
  // A model of so many layers scales scores by hidden_size / num_heads in place of head_dim; 0 = none does.
  int num_layers_of_other_scale = 0;

  // Norms and MLP.
  bool has_pre_norms = true;  // see ModelConfig, as those below
  bool has_post_norms = false;
  const char* ffn_norm_tensor = "ffn_norm.weight";  // behind "blk.N."
  bool has_fused_gate = false;
  Activation activation = Activation::kSilu;

  // Experts.
  Presence experts = Presence::kNever;
  ExpertConfig usual_experts = {};    // how they are chosen and weighed, where the file does not say
  bool may_leave_out_gating = false;  // files whose experts are ranked with biases need not say how they are weighed

  // The whole.
  bool scales_embedding = false;        // by the root of hidden_size
  bool has_multipliers = false;         // of the embedding, the residual stream, scores and logits, as the file says
  bool counts_further_layers = false;   // block_count takes in those that predict what comes after the next token
  bool strips_behind_specials = false;  // special tokens of a SentencePiece vocabulary strip what is behind them
};

// nullptr: there is none of that name.
const Family* find_family(std::string_view name);

// general.architecture's. Throws Error{kInvalidArgument} where it is missing or unknown.
const Family& read_family(const GgufFile& gguf);

}  // namespace larder
