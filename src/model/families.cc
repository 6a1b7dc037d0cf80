#include "model/families.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

// As DeepSeek-V3's.
constexpr ExpertConfig kSigmoidExperts = {.gating = ExpertGating::kSigmoid, .normalises = false};

constexpr Family kFamilies[] = {
    {.name = "llama", .rope_interleaved = true, .experts = Presence::kMaybe},
    {.name = "qwen2", .qkv_bias = Presence::kAlways},
    {.name = "qwen3", .qk_norm = Presence::kAlways},
    {.name = "qwen3moe", .qk_norm = Presence::kAlways, .experts = Presence::kAlways},
    // 27B has 62 layers.
    {.name = "gemma3", .has_local_rope = true, .local_base = 10000, .needs_window = true, .window_pattern = 6,
     .qk_norm = Presence::kAlways, .num_layers_of_other_scale = 62, .has_post_norms = true,
     .activation = Activation::kGeluTanh, .scales_embedding = true},
    // The first files do not say what all sizes have: the window and the caps. 27B has 46 layers.
    {.name = "gemma2", .default_window = 4096, .window_pattern = 2, .score_cap = 50, .logit_cap = 30,
     .num_layers_of_other_scale = 46, .has_post_norms = true, .activation = Activation::kGeluTanh,
     .scales_embedding = true},
    {.name = "deepseek2", .rope_interleaved = true, .yarn_multiplier = YarnMultiplier::kOnScores, .has_latent = true,
     .experts = Presence::kMaybe, .usual_experts = {.normalises = false}},
    // Files of Phi 4 say a window of 0.
    {.name = "phi3", .may_say_window_0 = true, .has_fused_gate = true, .strips_behind_specials = true},
    {.name = "smollm3", .rope_interleaved = true, .still_layers = StillLayers::kEveryFourth},
    {.name = "granite", .rope_interleaved = true, .has_multipliers = true},
    {.name = "mistral3", .rope_interleaved = true, .yarn_multiplier = YarnMultiplier::kOnMagnitude,
     .has_temperature = true},
    {.name = "olmo2", .has_local_rope = true, .window_pattern = 4, .qk_norm = Presence::kAlways,
     .norms_heads_together = true, .has_pre_norms = false, .has_post_norms = true},
    {.name = "exaone4", .still_layers = StillLayers::kWithoutWindow, .window_pattern = 4, .qk_norm = Presence::kAlways,
     .has_pre_norms = false, .has_post_norms = true},
    {.name = "seed_oss", .qkv_bias = Presence::kAlways, .ffn_norm_tensor = "post_attention_norm.weight"},
    {.name = "ernie4_5", .rope_interleaved = true},
    {.name = "qwen2moe", .qkv_bias = Presence::kAlways, .experts = Presence::kAlways,
     .usual_experts = {.weighs_shared = true, .normalises = false}},
    {.name = "granitemoe", .rope_interleaved = true, .experts = Presence::kAlways, .has_multipliers = true},
    {.name = "glm4", .rope_interleaved = true, .may_have_rope_sections = true, .qkv_bias = Presence::kMaybe,
     .has_post_norms = true, .has_fused_gate = true},
    // The authors do not round the ramp; no key of GGUF says so.
    {.name = "gpt-oss", .rounds_ramp = false, .needs_window = true, .window_pattern = 2, .qkv_bias = Presence::kAlways,
     .has_output_bias = true, .has_sink_scores = true, .ffn_norm_tensor = "post_attention_norm.weight",
     .activation = Activation::kClampedSwiglu, .experts = Presence::kAlways,
     .usual_experts = {.gating = ExpertGating::kSoftmaxOfChosen, .has_biases = true}},
    {.name = "glm4moe", .qkv_bias = Presence::kMaybe, .qk_norm = Presence::kMaybe,
     .ffn_norm_tensor = "post_attention_norm.weight", .experts = Presence::kAlways, .usual_experts = kSigmoidExperts,
     .may_leave_out_gating = true, .counts_further_layers = true},
    {.name = "dots1", .qk_norm = Presence::kAlways, .experts = Presence::kAlways, .usual_experts = kSigmoidExperts,
     .may_leave_out_gating = true},
    {.name = "ernie4_5-moe", .rope_interleaved = true, .experts = Presence::kAlways, .may_leave_out_gating = true},
};

}  // namespace

const Family* find_family(std::string_view name) {
  const auto known = std::ranges::find(kFamilies, name, &Family::name);
  return known != std::end(kFamilies) ? known : nullptr;
}

const Family& read_family(const GgufFile& gguf) {
  const auto name = gguf.find_string("general.architecture");
  if (!name) throw_invalid("GGUF: general.architecture: the key is missing");
  if (const Family* known = find_family(*name)) return *known;
  std::string all;
  for (const Family& family : kFamilies) all += fmt::format("{}{}", all.empty() ? "" : ", ", family.name);
  throw_invalid("GGUF: general.architecture: '{}' is not supported; these are: {}", printable(*name), all);
}

}  // namespace larder
