#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "model/forward/weights.h"
#include "model/model_config_test_support.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

TEST(ModelConfig, Llama) {
  const ModelConfig config = read(small_llama()
                                      .add_uint("llama.attention.head_count_kv", 2)
                                      .add_uint("llama.rope.dimension_count", 8)
                                      .add_float("llama.rope.freq_base", 100.0f));
  EXPECT_EQ(config.name, "small");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.ffn_size, 128);
  EXPECT_EQ(config.num_layers(), 2);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 10);
  EXPECT_EQ(config.context_len, 2048);
  EXPECT_FLOAT_EQ(config.rms_epsilon, 1e-5f);
  EXPECT_FLOAT_EQ(config.attention_scale, 0.25f);
  EXPECT_EQ(config.embedding_scale, 1);
  EXPECT_TRUE(config.rope_interleaved);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FALSE(config.has_qkv_bias);
  ASSERT_EQ(config.ropes.size(), 1u);
  ASSERT_EQ(config.ropes[0].frequencies.size(), 4u);
  EXPECT_DOUBLE_EQ(config.ropes[0].frequencies[0], 1);
  EXPECT_DOUBLE_EQ(config.ropes[0].frequencies[2], 0.1);
  EXPECT_EQ(config.layers[1].window, 0);
}

TEST(ModelConfig, KeysThatNobodyKnowsAreRefused) {
  EXPECT_THAT(error_of(small_llama().add_uint("llama.twist", 1)),
              HasSubstr("GGUF: llama.twist: the key is unknown, and it might change what is computed"));
  EXPECT_THAT(error_of(small_llama().add_uint("llama.attention.kv_lora_rank", 8)), HasSubstr("llama.attention.kv_lora_rank: the key"));
  EXPECT_THAT(error_of(small_llama().add_string("llama.a\x1b", "")), HasSubstr("llama.a?: the key is unknown"));
  // Of others than the architecture.
  EXPECT_EQ(error_of(small_llama().add_uint("general.twist", 1).add_uint("qwen2.twist", 1).add_uint("llamas.twist", 1)), "");
}

// As converters write them of models that have none of it.
TEST(ModelConfig, KeysThatChangeNothingAreTaken) {
  EXPECT_EQ(error_of(small_llama()
                         .add_uint("llama.vocab_size", 10)
                         .add_string("llama.tensor_data_layout", "Meta AI original pth")
                         .add_uint("llama.expert_count", 0)
                         .add_uint("llama.expert_used_count", 0)
                         .add_uint("llama.rope.scaling.original_context_length", 1024)
                         .add_bool("llama.rope.scaling.finetuned", false)
                         .add_float("llama.attention.clamp_kqv", 0.0f)
                         .add_bool("llama.attention.causal", true)
                         .add_uint("llama.nextn_predict_layers", 0)),
            "");
}

TEST(ModelConfig, Gemma3SlidesInFiveLayersOfSix) {
  const ModelConfig config = read(small_model("gemma3")
                                      .add_uint("gemma3.block_count", 13)
                                      .add_uint("gemma3.feed_forward_length", 128)
                                      .add_uint("gemma3.attention.key_length", 32)
                                      .add_uint("gemma3.attention.value_length", 32)
                                      .add_uint("gemma3.attention.sliding_window", 512)
                                      .add_float("gemma3.rope.freq_base", 1e6f)
                                      .add_string("gemma3.rope.scaling.type", "linear")
                                      .add_float("gemma3.rope.scaling.factor", 8.0f));
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.num_kv_heads, 4);  // as many as heads where the file is silent
  EXPECT_FLOAT_EQ(config.embedding_scale, 8);
  EXPECT_FLOAT_EQ(config.attention_scale, static_cast<float>(1 / std::sqrt(32.0)));
  EXPECT_TRUE(config.has_qk_norm);
  EXPECT_TRUE(config.has_post_norms);
  EXPECT_FALSE(config.rope_interleaved);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  for (int i = 0; i < 13; ++i) {
    const bool is_global = i == 5 || i == 11;
    EXPECT_EQ(config.layers[static_cast<std::size_t>(i)].window, is_global ? 0 : 512) << i;
    EXPECT_EQ(config.layers[static_cast<std::size_t>(i)].rope, is_global ? 0 : 1) << i;
  }
  // The global base is scaled, the local one is not.
  EXPECT_DOUBLE_EQ(config.ropes[0].frequencies[0], 1.0 / 8);
  EXPECT_DOUBLE_EQ(config.ropes[1].frequencies[0], 1.0);
  EXPECT_DOUBLE_EQ(config.ropes[1].frequencies[8], 0.01);
  const auto shapes = kv_layer_shapes(config);
  EXPECT_EQ(shapes[0], (KvLayerShape{.num_kv_heads = 4, .head_dim = 32, .window = 512}));
  EXPECT_EQ(shapes[5], (KvLayerShape{.num_kv_heads = 4, .head_dim = 32, .window = 0}));
}

TEST(ModelConfig, YarnInterpolatesSlowPairsOnly) {
  const ModelConfig config = read(small_model("qwen2")
                                      .add_uint("qwen2.block_count", 1)
                                      .add_uint("qwen2.feed_forward_length", 128)
                                      .add_string("qwen2.rope.scaling.type", "yarn")
                                      .add_float("qwen2.rope.scaling.factor", 4.0f)
                                      .add_uint("qwen2.rope.scaling.original_context_length", 64));
  EXPECT_TRUE(config.has_qkv_bias);
  EXPECT_FALSE(config.rope_interleaved);
  const auto& frequencies = config.ropes[0].frequencies;
  EXPECT_DOUBLE_EQ(frequencies[0], 1);
  EXPECT_DOUBLE_EQ(frequencies[7], std::pow(10000.0, -14.0 / 16) / 4);
  EXPECT_NEAR(config.ropes[0].magnitude, 0.1 * std::log(4.0) + 1, 1e-12);
}

TEST(ModelConfig, YarnsMagnitudeMayBeGiven) {
  const auto yarn = [](const char* name, float value) {
    return small_llama()
        .add_string("llama.rope.scaling.type", "yarn")
        .add_float("llama.rope.scaling.factor", 4.0f)
        .add_uint("llama.rope.scaling.original_context_length", 64)
        .add_float(name, value);
  };
  const double of_factor = 0.1 * std::log(4.0) + 1;
  EXPECT_NEAR(read(yarn("llama.rope.scaling.attn_factor", 0.5f)).ropes[0].magnitude, 0.5 * of_factor, 1e-12);
  EXPECT_NEAR(read(yarn("llama.rope.scaling.yarn_attn_factor", 0.5f)).ropes[0].magnitude, 0.5, 1e-12);
  EXPECT_NEAR(read(yarn("llama.rope.scaling.yarn_ext_factor", 1.0f)).ropes[0].magnitude, of_factor, 1e-12);
  EXPECT_THAT(error_of(yarn("llama.rope.scaling.yarn_ext_factor", 2.0f)), HasSubstr("yarn_ext_factor"));
}

TEST(ModelConfig, AFactorOf0ScalesNothing) {
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"})
    EXPECT_EQ(read(small_llama().add_float(key, 0.0f)).ropes[0].frequencies, read(small_llama()).ropes[0].frequencies);
}

TEST(ModelConfig, YarnsOriginalContextIsTheModelsIfNoneIsGiven) {
  const auto yarn = [] {
    return small_llama().add_string("llama.rope.scaling.type", "yarn").add_float("llama.rope.scaling.factor", 4.0f);
  };
  const auto given = read(yarn().add_uint("llama.rope.scaling.original_context_length", 2048)).ropes[0];
  EXPECT_EQ(read(yarn()).ropes[0].frequencies, given.frequencies);
  EXPECT_NE(read(yarn().add_uint("llama.rope.scaling.original_context_length", 256)).ropes[0].frequencies, given.frequencies);
}

TEST(ModelConfig, DivisorsComeFromTheirTensor) {
  GgufBuilder builder = small_llama();
  builder.add_tensor("rope_freqs.weight", {8}, GgmlType::kF32, 32);
  EXPECT_THAT(error_of(builder), HasSubstr("divisor 0 is 0"));
  for (int i = 0; i < 8; ++i) {
    const float divisor = i < 4 ? 1 : 8;
    std::memcpy(builder.data().data() + 2560 + i * 4, &divisor, 4);
  }
  const ModelConfig config = read(builder);
  EXPECT_DOUBLE_EQ(config.ropes[0].frequencies[0], 1);
  EXPECT_DOUBLE_EQ(config.ropes[0].frequencies[4], 0.01 / 8);
}

TEST(ModelConfig, PerLayerListsMustAgree) {
  const auto with_kv_heads = [](std::vector<std::uint32_t> counts) {
    return small_llama().add_array("llama.attention.head_count_kv", GgufType::kUint32, counts);
  };
  EXPECT_EQ(read(with_kv_heads({2, 2})).num_kv_heads, 2);
  EXPECT_THAT(error_of(with_kv_heads({2, 4})), HasSubstr("llama.attention.head_count_kv"));
  EXPECT_THAT(error_of(with_kv_heads({2})), HasSubstr("1 values for 2 layers"));
  EXPECT_THAT(error_of(with_kv_heads({0, 0})), HasSubstr("llama.attention.head_count_kv"));
  // Counted before it is read: a list may be as long as the file.
  EXPECT_THAT(error_of(small_llama()
                           .add_uint("llama.attention.sliding_window", 512)
                           .add_array<float>("llama.attention.sliding_window_pattern",
                                             GgufType::kFloat32, {1, 0, 1})),
              HasSubstr("3 values for 2 layers"));
}

TEST(ModelConfig, TheLastBitOfANumberIsAmongThoseComputed) {
  const ModelConfig config = read(small_llama());
  const auto next = [](auto& number) { number = std::nextafter(number, decltype(+number){2}); };
  const std::function<void(ModelConfig&)> changes[] = {
      [&](ModelConfig& changed) { next(changed.ropes[0].frequencies[0]); },
      [&](ModelConfig& changed) { next(changed.ropes[0].frequencies[7]); },
      [&](ModelConfig& changed) { next(changed.ropes[0].magnitude); },
      [&](ModelConfig& changed) { next(changed.rms_epsilon); },
      [&](ModelConfig& changed) { next(changed.attention_scale); },
      [&](ModelConfig& changed) { next(changed.embedding_scale); },
      [&](ModelConfig& changed) { changed.rope_dim -= 2; },
      [&](ModelConfig& changed) { changed.ropes.push_back(changed.ropes[0]); },
  };
  for (const bool turns_here : {false, true}) {
    const std::vector<double> numbers = computed_numbers(config, turns_here);
    EXPECT_EQ(computed_numbers(read(small_llama()), turns_here), numbers);
    for (const auto& change : changes) {
      ModelConfig changed = config;
      change(changed);
      EXPECT_NE(computed_numbers(changed, turns_here), numbers) << &change - changes;
    }
  }
}

TEST(ModelConfig, BadFieldsAreNamed) {
  EXPECT_THAT(error_of(GgufBuilder{}), HasSubstr("general.architecture: the key is missing"));
  EXPECT_THAT(error_of(small_model("mamba")), HasSubstr("'mamba' is not supported"));
  EXPECT_THAT(error_of(small_model("llama")), HasSubstr("llama.block_count: the key is missing"));
  const auto expect = [](const GgufBuilder& builder, const char* field) {
    EXPECT_THAT(error_of(builder), HasSubstr(field));
  };
  const auto with_uint = [](const std::string& key, std::uint32_t value) {
    return small_llama().add_uint("llama." + key, value);
  };
  expect(with_uint("attention.head_count_kv", 0), "llama.attention.head_count_kv: 0 is not in");
  expect(with_uint("attention.head_count_kv", 3), "llama.attention.head_count_kv: 3 does not");
  expect(with_uint("attention.key_length", 1 << 20), "llama.attention.key_length");
  expect(with_uint("attention.value_length", 8), "llama.attention.value_length");
  expect(with_uint("rope.dimension_count", 7), "llama.rope.dimension_count: 7");
  expect(with_uint("rope.dimension_count", 18), "llama.rope.dimension_count: 18");
  expect(small_model("qwen2").add_uint("qwen2.block_count", 2).add_uint("qwen2.feed_forward_length", 128)
             .add_uint("qwen2.expert_count", 8),
         "qwen2.expert_count is 8: this feature is not supported");
  expect(with_uint("attention.sliding_window", 0), "llama.attention.sliding_window: 0");
  expect(small_llama().add_bool("llama.attention.causal", false), "llama.attention.causal");
  for (const float value : {0.0f, -1.0f, 1e-42f, NAN, INFINITY})
    expect(small_llama().add_float("llama.rope.freq_base", value), "llama.rope.freq_base");
  expect(small_llama().add_string("llama.rope.scaling.type", "dynamic"), "'dynamic' is not supported");
  for (const char* type : {"none", "linear"})
    expect(small_llama().add_string("llama.rope.scaling.type", type).add_float("llama.rope.scaling.attn_factor", 2.0f),
           "llama.rope.scaling.attn_factor: values other than 1");
  expect(small_llama().add_float("llama.rope.scaling.attn_factor", 2.0f), "llama.rope.scaling.attn_factor");
  GgufBuilder brief;
  brief.add_string("general.architecture", "llama").add_uint("llama.block_count", 1)
      .add_uint("llama.embedding_length", 64).add_uint("llama.feed_forward_length", 64)
      .add_uint("llama.context_length", 1);
  expect(brief, "llama.context_length: 1 is less");
  expect(small_llama().add_string("llama.rope.freq_base", "x"), "llama.rope.freq_base");
  GgufBuilder many;
  many.add_string("general.architecture", "llama").add_uint("llama.block_count", 0x7fffffff);
  expect(many, "llama.block_count: 2147483647 is not in");
}

TEST(ModelConfig, ExpertsOfMixtral) {
  const ModelConfig config = read(small_llama().add_uint("llama.expert_count", 8).add_uint("llama.expert_used_count", 2));
  EXPECT_EQ(config.experts.num_experts, 8);
  EXPECT_EQ(config.experts.num_chosen, 2);
  EXPECT_EQ(config.experts.ffn_size, 128);
  EXPECT_EQ(config.experts.shared_ffn_size, 0);
  EXPECT_TRUE(config.experts.normalises);
  EXPECT_EQ(config.experts.scale, 1);
  for (const LayerConfig& layer : config.layers) EXPECT_TRUE(layer.has_experts);
  // Files say 0 where there are none.
  const ModelConfig none = read(small_llama().add_uint("llama.expert_count", 0).add_uint("llama.expert_used_count", 0));
  EXPECT_EQ(none.experts.num_experts, 0);
  EXPECT_FALSE(none.layers[0].has_experts);
}

// V3's kinds of keys.
GgufBuilder small_deepseek() {
  return small_model("deepseek2")
      .add_uint("deepseek2.block_count", 3)
      .add_uint("deepseek2.feed_forward_length", 128)
      .add_uint("deepseek2.attention.head_count_kv", 1)
      .add_uint("deepseek2.attention.key_length", 40)
      .add_uint("deepseek2.attention.value_length", 32)
      .add_uint("deepseek2.attention.key_length_mla", 24)
      .add_uint("deepseek2.attention.value_length_mla", 16)
      .add_uint("deepseek2.attention.kv_lora_rank", 32)
      .add_uint("deepseek2.rope.dimension_count", 8)
      .add_uint("deepseek2.leading_dense_block_count", 1)
      .add_uint("deepseek2.expert_count", 8)
      .add_uint("deepseek2.expert_used_count", 2)
      .add_uint("deepseek2.expert_feed_forward_length", 48)
      .add_uint("deepseek2.expert_shared_count", 2);
}

TEST(ModelConfig, DeepSeek) {
  const ModelConfig config = read(small_deepseek()
                                      .add_uint("deepseek2.attention.q_lora_rank", 20)
                                      .add_uint("deepseek2.expert_gating_func", 2)
                                      .add_bool("deepseek2.expert_weights_norm", true)
                                      .add_float("deepseek2.expert_weights_scale", 2.5f)
                                      .add_uint("deepseek2.expert_group_count", 4)
                                      .add_uint("deepseek2.expert_group_used_count", 2));
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.head_dim, 40);
  EXPECT_EQ(config.latent.rank, 32);
  EXPECT_EQ(config.latent.q_rank, 20);
  EXPECT_EQ(config.latent.nope_dim, 16);
  EXPECT_EQ(config.o_size(), 4 * 16);
  EXPECT_EQ(config.rope_dim, 8);
  EXPECT_FLOAT_EQ(config.attention_scale, static_cast<float>(1 / std::sqrt(24.0)));
  EXPECT_TRUE(kv_layer_shapes(config)[0].is_latent);
  EXPECT_FALSE(config.layers[0].has_experts);
  EXPECT_TRUE(config.layers[1].has_experts);
  EXPECT_EQ(config.ffn_size, 128);
  EXPECT_EQ(config.experts.ffn_size, 48);
  EXPECT_EQ(config.experts.shared_ffn_size, 96);
  EXPECT_EQ(config.experts.gating, ExpertGating::kSigmoid);
  EXPECT_TRUE(config.experts.normalises);
  EXPECT_EQ(config.experts.scale, 2.5f);
  EXPECT_EQ(config.experts.num_groups, 4);
  EXPECT_EQ(config.experts.num_chosen_groups, 2);
  // What a file leaves out.
  const ModelConfig lite = read(small_deepseek());
  EXPECT_EQ(lite.latent.q_rank, 0);
  EXPECT_EQ(lite.experts.gating, ExpertGating::kSoftmax);
  EXPECT_FALSE(lite.experts.normalises);
  EXPECT_EQ(lite.experts.scale, 1);
  EXPECT_EQ(lite.experts.num_groups, 1);
}

GgufBuilder small_gpt_oss() {
  return small_model("gpt-oss")
      .add_uint("gpt-oss.block_count", 4)
      .add_uint("gpt-oss.feed_forward_length", 48)
      .add_uint("gpt-oss.attention.key_length", 64)
      .add_uint("gpt-oss.attention.head_count_kv", 2)
      .add_uint("gpt-oss.attention.sliding_window", 128)
      .add_uint("gpt-oss.expert_count", 8)
      .add_uint("gpt-oss.expert_used_count", 4)
      .add_float("gpt-oss.rope.freq_base", 150000.0f)
      .add_string("gpt-oss.rope.scaling.type", "yarn")
      .add_float("gpt-oss.rope.scaling.factor", 32.0f)
      .add_uint("gpt-oss.rope.scaling.original_context_length", 4096);
}

TEST(ModelConfig, GptOss) {
  const ModelConfig config = read(small_gpt_oss());
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(config.layers[i].window, i % 2 == 0 ? 128 : 0);
    EXPECT_TRUE(config.layers[i].has_experts);
  }
  EXPECT_EQ(config.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(config.experts.gating, ExpertGating::kSoftmaxOfChosen);
  EXPECT_TRUE(config.experts.has_biases && config.has_qkv_bias && config.has_output_bias && config.has_sink_scores);
  EXPECT_FALSE(config.rope_interleaved);
  EXPECT_NEAR(config.ropes[0].magnitude, 0.1 * std::log(32.0) + 1, 1e-12);
  // The ramp begins at pair 8.09 and ends at pair 17.40, where others have 8 and 18.
  const auto& frequencies = config.ropes[0].frequencies;
  const auto plain = [](int pair) { return std::pow(150000.0, -pair / 32.0); };
  const auto pair_of = [](double rotations) { return 32 * std::log(4096 / (rotations * 2 * M_PI)) / std::log(150000.0); };
  const double low = pair_of(32), high = pair_of(1);
  EXPECT_EQ(frequencies[8], plain(8));
  const double ramp = (9 - low) / (high - low);
  EXPECT_NEAR(frequencies[9], plain(9) * (1 - ramp + ramp / 32), 1e-12);
  EXPECT_NEAR(frequencies[18], plain(18) / 32, 1e-12);
  EXPECT_THAT(error_of(small_model("gpt-oss").add_uint("gpt-oss.block_count", 4).add_uint("gpt-oss.feed_forward_length", 48)),
              HasSubstr("gpt-oss.attention.sliding_window: the key is missing"));
}

TEST(ModelConfig, DeepSeeksYarnIsOnTheScores) {
  const ModelConfig config = read(small_deepseek()
                                      .add_string("deepseek2.rope.scaling.type", "yarn")
                                      .add_float("deepseek2.rope.scaling.factor", 40.0f)
                                      .add_float("deepseek2.rope.scaling.yarn_log_multiplier", 0.1f));
  EXPECT_EQ(config.ropes[0].magnitude, 1);
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(config.attention_scale, mscale * mscale / std::sqrt(24.0), 1e-6);
}

TEST(ModelConfig, BadFieldsOfExpertsAndLatentsAreNamed) {
  const auto expect = [](const GgufBuilder& builder, const char* field) {
    EXPECT_THAT(error_of(builder), HasSubstr(field));
  };
  expect(small_llama().add_uint("llama.expert_count", 8), "llama.expert_used_count: the key is missing");
  expect(small_llama().add_uint("llama.expert_count", 1025), "llama.expert_count: 1025 is not in [1, 1024]");
  expect(small_llama().add_uint("llama.expert_count", 8).add_uint("llama.expert_used_count", 9),
         "llama.expert_used_count: 9 is not in [1, 8]");
  expect(small_deepseek().add_uint("deepseek2.expert_gating_func", 4), "deepseek2.expert_gating_func: 4");
  expect(small_llama().add_uint("llama.expert_count", 8).add_uint("llama.expert_used_count", 2)
             .add_uint("llama.leading_dense_block_count", 2),
         "llama.leading_dense_block_count: 2 of 2 layers");
  expect(small_deepseek().add_tensor("blk.1.exp_probs_b.bias", {8}, GgmlType::kF32, 32),
         "deepseek2.expert_gating_func: the key is missing, and nothing else");
  expect(small_deepseek()
             .add_string("deepseek2.rope.scaling.type", "yarn")
             .add_float("deepseek2.rope.scaling.factor", 40.0f)
             .add_float("deepseek2.rope.scaling.yarn_log_multiplier", 3e38f),
         "deepseek2.rope.scaling.yarn_log_multiplier: scores are multiplied by inf");
  // It would multiply scores, too, where the frequencies are scaled otherwise.
  for (const char* type : {"linear", "none"})
    expect(small_deepseek()
               .add_string("deepseek2.rope.scaling.type", type)
               .add_float("deepseek2.rope.scaling.factor", 40.0f)
               .add_float("deepseek2.rope.scaling.yarn_log_multiplier", 0.1f),
           "deepseek2.rope.scaling.yarn_log_multiplier is 0.1");
  expect(small_deepseek().add_float("deepseek2.attention.temperature_scale", 0.1f),
         "deepseek2.attention.temperature_scale is 0.1");
  expect(small_llama().add_uint("llama.expert_count", 8).add_uint("llama.expert_used_count", 2)
             .add_uint("llama.expert_gating_func", 4),
         "llama.expert_gating_func: 4 is not supported");
  expect(small_deepseek().add_uint("deepseek2.expert_group_count", 3), "deepseek2.expert_group_used_count");
  expect(small_deepseek().add_uint("deepseek2.expert_group_count", 8).add_uint("deepseek2.expert_group_used_count", 1),
         "2 experts cannot be chosen from 1 of 8 groups");
  GgufBuilder old = small_model("deepseek2").add_uint("deepseek2.block_count", 1)
                        .add_uint("deepseek2.feed_forward_length", 64);
  expect(old, "deepseek2.attention.key_length_mla: the key is missing; files of before");
  GgufBuilder narrow = small_model("deepseek2").add_uint("deepseek2.block_count", 1)
                           .add_uint("deepseek2.feed_forward_length", 64)
                           .add_uint("deepseek2.attention.key_length", 40)
                           .add_uint("deepseek2.attention.value_length", 32)
                           .add_uint("deepseek2.attention.key_length_mla", 8)
                           .add_uint("deepseek2.attention.value_length_mla", 16)
                           .add_uint("deepseek2.attention.kv_lora_rank", 32)
                           .add_uint("deepseek2.rope.dimension_count", 8);
  expect(narrow, "deepseek2.attention.key_length_mla: 8 is no more than the 8");
}

TEST(ModelConfig, TextsOfTheFileReachNoTerminalAsTheyAre) {
  EXPECT_EQ(read(small_llama("a\x1b[2J\xff\n")).name, "a?[2J??");
  EXPECT_THAT(error_of(small_model("a\x1b")), HasSubstr("'a?' is not supported"));
  EXPECT_THAT(error_of(small_llama().add_string("llama.rope.scaling.type", "\x1bx")),
              HasSubstr("'?x' is not supported"));
}

TEST(ModelConfig, TensorsThatWouldNotBeComputedAreRefused) {
  GgufBuilder builder = small_model("llama").add_uint("llama.block_count", 1).add_uint("llama.feed_forward_length", 64);
  for (const char* name : {"blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v", "blk.0.attn_output", "blk.0.ffn_gate",
                           "blk.0.ffn_up", "blk.0.ffn_down"})
    builder.add_tensor(name + std::string(".weight"), {64, 64}, GgmlType::kF32, 64 * 64 * 4);
  for (const char* name : {"blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"})
    builder.add_tensor(name + std::string(".weight"), {64}, GgmlType::kF32, 64 * 4);
  const auto size_of = [](const GgufBuilder& model) {
    const auto bytes = model.build();
    const GgufFile file(bytes);
    return weights_size_bytes(read_model_config(file), file);
  };
  EXPECT_GT(size_of(builder), 7u * 64 * 64 * 4);
  builder.add_tensor("output.bias", {10}, GgmlType::kF32, 10 * 4);
  try {
    size_of(builder);
    ADD_FAILURE() << "a bias was left out";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("tensor 'output.bias' is not part"));
  }
}

TEST(ModelConfig, MissingAndMisshapenTensorsAreNamed) {
  const auto size_error = [](const GgufBuilder& builder) -> std::string {
    const auto bytes = builder.build();
    const GgufFile file(bytes);
    try {
      weights_size_bytes(read_model_config(file), file);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  GgufBuilder builder = small_llama();
  EXPECT_THAT(size_error(builder), HasSubstr("tensor 'blk.0.attn_norm.weight' is missing"));
  builder.add_tensor("blk.0.attn_norm.weight", {32}, GgmlType::kF32, 128);
  EXPECT_THAT(size_error(builder), HasSubstr("1 rows of 32 values; 1 of 64 are expected"));
  // Experts that stand in another order, or in one matrix, would be cut in the wrong places.
  for (const std::vector<std::uint64_t>& dims : {std::vector<std::uint64_t>{64, 2, 128}, {64, 256}}) {
    GgufBuilder experts = small_model("llama").add_uint("llama.block_count", 1).add_uint("llama.feed_forward_length", 128)
                              .add_uint("llama.expert_count", 2).add_uint("llama.expert_used_count", 1)
                              .add_tensor("blk.0.ffn_gate_exps.weight", dims, GgmlType::kF32, 65536)
                              .add_tensor("blk.0.ffn_gate_inp.weight", {64, 2}, GgmlType::kF32, 512);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"})
      experts.add_tensor(fmt::format("blk.0.{}.weight", name), {64, 64}, GgmlType::kF32, 16384);
    for (const char* name : {"attn_norm", "ffn_norm"})
      experts.add_tensor(fmt::format("blk.0.{}.weight", name), {64}, GgmlType::kF32, 256);
    EXPECT_THAT(size_error(experts), HasSubstr("64 x 128 x 2 are expected"));
  }
}

}  // namespace
}  // namespace larder
