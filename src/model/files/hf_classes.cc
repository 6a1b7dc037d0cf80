#include "model/files/hf_classes.h"

namespace larder {
namespace {

constexpr HfClass kClasses[] = {
    // The first files have as many KV heads as heads.
    {.name = "LlamaForCausalLM", .architecture = "llama", .may_leave_out_kv_heads = true, .turns_halves = true,
     .windows = HfWindows::kNone},
    // A window left out is 4096.
    {.name = "MistralForCausalLM", .architecture = "llama", .turns_halves = true, .windows = HfWindows::kSaid},
    {.name = "MixtralForCausalLM", .architecture = "llama", .turns_halves = true, .needs_base = true,
     .experts = HfExperts::kMixtral},
    {.name = "Qwen2ForCausalLM", .architecture = "qwen2", .windows = HfWindows::kUpper, .uses_windows = false,
     .calls_bias_qkv = true},
    {.name = "Qwen3ForCausalLM", .architecture = "qwen3", .needs_head_dim = true, .windows = HfWindows::kUpper,
     .uses_windows = false, .says_qk_norm = true},
    {.name = "Qwen3MoeForCausalLM", .architecture = "qwen3moe", .windows = HfWindows::kNoneUsed, .uses_windows = false,
     .says_qk_norm = true, .experts = HfExperts::kQwen},
    {.name = "Qwen2MoeForCausalLM", .architecture = "qwen2moe", .windows = HfWindows::kNoneUsed, .uses_windows = false,
     .calls_bias_qkv = true, .experts = HfExperts::kQwen},
    {.name = "Gemma2ForCausalLM", .architecture = "gemma2", .needs_head_dim = true, .has_query_scalar = true,
     .windows = HfWindows::kNeeded, .may_say_window_twice = true, .norms_add_one = true, .ties_by_default = true},
    {.name = "Gemma3ForCausalLM", .architecture = "gemma3", .needs_head_dim = true, .has_query_scalar = true,
     .base = 1e6, .windows = HfWindows::kNeeded, .says_pattern = true, .norms_add_one = true, .ties_by_default = true},
    {.name = "Phi3ForCausalLM", .architecture = "phi3", .may_turn_part = true, .has_old_longrope_names = true,
     .may_say_original_len = true, .joins_qkv = true, .may_name_code = true},
    {.name = "SmolLM3ForCausalLM", .architecture = "smollm3", .turns_halves = true, .needs_base = true,
     .windows = HfWindows::kNone, .uses_windows = false, .ties_by_default = true},
    {.name = "GraniteForCausalLM", .architecture = "granite", .turns_halves = true, .windows = HfWindows::kNone},
    {.name = "Ministral3ForCausalLM", .architecture = "mistral3", .turns_halves = true, .needs_base = true,
     .needs_scaling = true},
    {.name = "Olmo2ForCausalLM", .architecture = "olmo2", .windows = HfWindows::kNone},
    {.name = "Olmo3ForCausalLM", .architecture = "olmo2", .needs_base = true, .windows = HfWindows::kSaidUnlessTyped,
     .says_pattern = true},
    // The pattern is a text, such as LLLG.
    {.name = "Exaone4ForCausalLM", .architecture = "exaone4", .windows = HfWindows::kSaidUnlessTyped,
     .needs_layer_types = true},
    {.name = "SeedOssForCausalLM", .architecture = "seed_oss", .windows = HfWindows::kNone},
    {.name = "Ernie4_5ForCausalLM", .architecture = "ernie4_5", .needs_base = true, .windows = HfWindows::kNone,
     .ties_by_default = true},
    {.name = "Glm4ForCausalLM", .architecture = "glm4", .may_turn_part = true, .turned_part = 0.5,
     .windows = HfWindows::kNone, .has_bias_by_default = true, .has_glm_norms = true},
    {.name = "GptOssForCausalLM", .architecture = "gpt-oss", .needs_base = true, .needs_scaling = true,
     .experts = HfExperts::kGptOss},
    {.name = "Glm4MoeForCausalLM", .architecture = "glm4moe", .may_turn_part = true, .turned_part = 0.5,
     .windows = HfWindows::kNone, .experts = HfExperts::kDeepSeek},
};

}  // namespace

std::span<const HfClass> hf_classes() { return kClasses; }

}  // namespace larder
