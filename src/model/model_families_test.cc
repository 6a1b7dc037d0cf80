// What files of the smaller families say, and leave out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "model/forward/forward_batch.h"
#include "model/model_config_test_support.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

GgufBuilder small_phi3(const std::vector<std::string>& divisors = {"long", "short"}) {
  GgufBuilder builder = small_model("phi3")
                            .add_uint("phi3.block_count", 2)
                            .add_uint("phi3.feed_forward_length", 128)
                            .add_uint("phi3.rope.dimension_count", 12)
                            .add_uint("phi3.rope.scaling.original_context_length", 256);
  for (const std::string& name : divisors) {
    builder.add_tensor("rope_factors_" + name + ".weight", {6}, GgmlType::kF32, 24);
    for (std::size_t i = 0; i < 6; ++i) {
      const float divisor = name == "long" ? 4 : 2;
      std::memcpy(builder.data().data() + builder.data().size() - 32 + i * 4, &divisor, 4);
    }
  }
  return builder;
}

TEST(ModelFamilies, LongRopesDivisorsGoByTheLongestSequence) {
  const auto bytes = small_phi3().add_float("phi3.rope.scaling.attn_factor", 1.25f).build();
  const GgufFile gguf(bytes);
  for (const auto& [length, divisor] : {std::pair{0, 4}, {257, 4}, {256, 2}, {32, 2}, {100'000, 4}}) {
    const ModelConfig config = read_model_config(gguf, length);
    EXPECT_TRUE(config.has_fused_gate);
    ASSERT_EQ(config.ropes[0].frequencies.size(), 6u);
    EXPECT_DOUBLE_EQ(config.ropes[0].frequencies[0], 1.0 / divisor) << length;
    EXPECT_DOUBLE_EQ(config.ropes[0].frequencies[3], 0.01 / divisor) << length;
    EXPECT_EQ(config.ropes[0].magnitude, 1.25) << length;
    EXPECT_EQ(config.context_len, 2048);
  }
  const auto expect = [](const GgufBuilder& builder, const char* message) { EXPECT_THAT(error_of(builder), HasSubstr(message)); };
  expect(small_phi3({"long"}), "tensor 'rope_factors_short.weight' is missing");
  expect(small_phi3({"short"}), "tensor 'rope_factors_long.weight' is missing");
  expect(small_phi3({}).add_string("phi3.rope.scaling.type", "longrope"), "tensor 'rope_factors_long.weight' is missing");
  expect(small_phi3().add_string("phi3.rope.scaling.type", "yarn"), "phi3.rope.scaling.type: 'yarn' beside tensor");
  expect(small_phi3().add_float("phi3.rope.scaling.factor", 4.0f), "phi3.rope.scaling.factor: values other than 1");
  expect(small_phi3().add_float("phi3.rope.scaling.attn_factor", -1.0f), "phi3.rope.scaling.attn_factor");
  GgufBuilder narrow = small_phi3({"long"});
  expect(narrow.add_tensor("rope_factors_short.weight", {5}, GgmlType::kF32, 20), "tensor 'rope_factors_short.weight': 5 x 1 values");
  GgufBuilder zero = small_phi3({"long"});
  expect(zero.add_tensor("rope_factors_short.weight", {6}, GgmlType::kF32, 24), "divisor 0 is 0");
}

TEST(ModelFamilies, AWindowThatNoSequenceLeavesIsNone) {
  const auto window_of = [](std::uint32_t window, int max_model_len) {
    const auto bytes = small_phi3({}).add_uint("phi3.attention.sliding_window", window).build();
    return read_model_config(GgufFile(bytes), max_model_len).layers[1].window;
  };
  EXPECT_EQ(window_of(0, 0), 0);
  EXPECT_EQ(window_of(2047, 0), 2047);
  EXPECT_EQ(window_of(2047, 64), 2047);
  EXPECT_EQ(window_of(2048, 0), 0);
  EXPECT_EQ(window_of(2048, 2049), 2048);
}

GgufBuilder small_family(const std::string& arch, std::uint32_t num_layers = 4) {
  return small_model(arch).add_uint(arch + ".block_count", num_layers).add_uint(arch + ".feed_forward_length", 128);
}

std::vector<int> ropes_of(const ModelConfig& config) {
  std::vector<int> ropes;
  for (const LayerConfig& layer : config.layers) ropes.push_back(layer.rope);
  return ropes;
}

TEST(ModelFamilies, EveryFourthLayerOfSmolLm3DoesNotTurn) {
  const ModelConfig config = read(small_family("smollm3", 9));
  EXPECT_EQ(ropes_of(config), (std::vector<int>{0, 0, 0, 1, 0, 0, 0, 1, 0}));
  ASSERT_EQ(config.ropes.size(), 2u);
  EXPECT_EQ(config.ropes[1].frequencies, std::vector<double>(8));
  EXPECT_EQ(config.ropes[1].magnitude, 1);
  EXPECT_TRUE(config.rope_interleaved);
  const auto flags = [](const std::vector<std::uint8_t>& turns) {
    return small_family("smollm3").add_array("smollm3.attention.rope_pattern", GgufType::kBool, turns);
  };
  EXPECT_EQ(ropes_of(read(flags({0, 1, 1, 1}))), (std::vector<int>{1, 0, 0, 0}));
  EXPECT_EQ(read(flags({1, 1, 1, 1})).ropes.size(), 1u);
  EXPECT_THAT(error_of(flags({1, 1, 1})), HasSubstr("smollm3.attention.rope_pattern: 3 values for 4 layers"));
}

TEST(ModelFamilies, GranitesFactorsAreTakenIntoOthers) {
  const auto granite = [](float residual, float logit) {
    return small_family("granite")
        .add_float("granite.attention.scale", 0.015625f)
        .add_float("granite.embedding_scale", 12)
        .add_float("granite.residual_scale", residual)
        .add_float("granite.logit_scale", logit);
  };
  const ModelConfig config = read(granite(0.25f, 8));
  EXPECT_EQ(config.attention_scale, 0.015625f);
  EXPECT_EQ(config.embedding_scale, 48);
  EXPECT_FLOAT_EQ(config.rms_epsilon, 16e-5f);
  EXPECT_EQ(config.output_norm_scale, 0.125f);
  EXPECT_THAT(error_of(small_family("granite")), HasSubstr("granite.logit_scale: the key is missing"));
  EXPECT_THAT(error_of(granite(1e-30f, 8)), HasSubstr("granite.residual_scale"));
  EXPECT_THAT(error_of(granite(0, 8)), HasSubstr("granite.residual_scale"));
  EXPECT_THAT(error_of(granite(1, -8)), HasSubstr("granite.logit_scale"));
  EXPECT_THAT(error_of(granite(1, 3e38f)), HasSubstr("granite.logit_scale"));
  EXPECT_THAT(error_of(granite(1, 1).add_bool("granite.rope.scaling.finetuned", false)), HasSubstr("finetuned"));
  for (const char* name : {"logit_scale", "residual_scale", "embedding_scale"})
    EXPECT_THAT(error_of(small_llama().add_float(std::string("llama.") + name, 2)), HasSubstr(name));
}

TEST(ModelFamilies, PlacesOfEndlessContextsAreBounded) {
  AttentionSequence sequence;
  EXPECT_EQ(seen_place(sequence, 1'000'000), 1'000'000);
  sequence.window = 64;
  EXPECT_EQ(seen_place(sequence, 62), 62);
  EXPECT_EQ(seen_place(sequence, 1'000'000), 63);
  sequence.num_sinks = 16;
  EXPECT_EQ(seen_place(sequence, 78), 78);
  EXPECT_EQ(seen_place(sequence, 1'000'000), 79);
}

TEST(ModelFamilies, SectionsOfRotationsAreGlms) {
  const std::vector<std::int32_t> some = {4, 4, 0, 0}, none = {0, 0, 0, 0};
  const auto glm = [] { return small_family("glm4"); };
  EXPECT_TRUE(read(glm()).rope_interleaved);
  EXPECT_TRUE(read(glm().add_array("glm4.rope.dimension_sections", GgufType::kInt32, none)).rope_interleaved);
  EXPECT_FALSE(read(glm().add_array("glm4.rope.dimension_sections", GgufType::kInt32, some)).rope_interleaved);
  EXPECT_TRUE(read(small_llama().add_array("llama.rope.dimension_sections", GgufType::kInt32, none)).rope_interleaved);
  EXPECT_THAT(error_of(small_llama().add_array("llama.rope.dimension_sections", GgufType::kInt32, some)), HasSubstr("llama.rope.dimension_sections"));
}

TEST(ModelFamilies, WhatSlidingLayersHaveApartIsRefused) {
  (void)read(small_llama().add_float("llama.rope.freq_base_swa", 10000));
  EXPECT_THAT(error_of(small_llama().add_float("llama.rope.freq_base_swa", 500)), HasSubstr("llama.rope.freq_base_swa"));
  for (const char* name : {"llama.attention.key_length_swa", "llama.attention.value_length_swa"})
    EXPECT_THAT(error_of(small_llama().add_uint(name, 8)), HasSubstr(name));
}

TEST(ModelFamilies, QueriesOfMistral3GrowWithTheirPosition) {
  const auto mistral = [] {
    return small_family("mistral3")
        .add_string("mistral3.rope.scaling.type", "yarn")
        .add_float("mistral3.rope.scaling.factor", 16)
        .add_uint("mistral3.rope.scaling.original_context_length", 64);
  };
  const ModelConfig config = read(mistral()
                                      .add_float("mistral3.rope.scaling.yarn_log_multiplier", 1)
                                      .add_float("mistral3.attention.temperature_scale", 0.5f));
  EXPECT_EQ(config.ropes[0].magnitude, 1);
  EXPECT_EQ(config.attention_scale, 0.25f);
  EXPECT_EQ(query_temperature(config.temperature, 63), 1);
  EXPECT_DOUBLE_EQ(query_temperature(config.temperature, 64), 1 + 0.5 * std::log(2.0));
  EXPECT_DOUBLE_EQ(query_temperature(config.temperature, 200), 1 + 0.5 * std::log(4.0));
  const ModelConfig plain = read(mistral());
  EXPECT_EQ(plain.temperature.scale, 0);
  EXPECT_NE(computed_numbers(config, false).size(), computed_numbers(plain, false).size());
  EXPECT_NEAR(plain.ropes[0].magnitude, 0.1 * std::log(16.0) + 1, 1e-12);
  EXPECT_THAT(error_of(small_family("mistral3").add_float("mistral3.attention.temperature_scale", 0.5f)),
              HasSubstr("mistral3.rope.scaling.original_context_length: the key is missing"));
  EXPECT_THAT(error_of(mistral().add_float("mistral3.attention.temperature_scale", -1)), HasSubstr("temperature_scale"));
  EXPECT_THAT(error_of(small_llama().add_float("llama.attention.temperature_scale", 0.5f)), HasSubstr("temperature_scale"));
}

TEST(ModelFamilies, LayersOfOlmoAndExaone) {
  const auto with_window = [](const std::string& arch) {
    return small_family(arch, 5)
        .add_uint(arch + ".attention.sliding_window", 128)
        .add_string(arch + ".rope.scaling.type", "linear")
        .add_float(arch + ".rope.scaling.factor", 8);
  };
  const ModelConfig olmo2 = read(small_family("olmo2"));
  EXPECT_FALSE(olmo2.has_pre_norms);
  EXPECT_TRUE(olmo2.has_post_norms && olmo2.has_qk_norm && olmo2.norms_heads_together);
  EXPECT_EQ(olmo2.ropes.size(), 1u);
  // OLMo 3: what a window is seen of turns as it was first trained.
  const ModelConfig olmo3 = read(with_window("olmo2"));
  EXPECT_EQ(ropes_of(olmo3), (std::vector<int>{1, 1, 1, 0, 1}));
  EXPECT_EQ(olmo3.layers[2].window, 128);
  EXPECT_EQ(olmo3.layers[3].window, 0);
  EXPECT_EQ(olmo3.ropes[0].frequencies[0], 1.0 / 8);
  EXPECT_EQ(olmo3.ropes[1].frequencies[0], 1);
  const ModelConfig exaone = read(with_window("exaone4"));
  EXPECT_EQ(ropes_of(exaone), (std::vector<int>{0, 0, 0, 1, 0}));
  EXPECT_EQ(exaone.ropes[1].frequencies[0], 0);
  EXPECT_FALSE(exaone.norms_heads_together);
  EXPECT_EQ(read(small_family("exaone4")).ropes.size(), 1u);
}

TEST(ModelFamilies, Gemma2CapsScoresAndLogits) {
  const auto gemma2 = [](std::uint32_t num_layers) { return small_family("gemma2", num_layers).add_uint("gemma2.attention.key_length", 32); };
  const ModelConfig config = read(gemma2(3)
                                      .add_uint("gemma2.attention.sliding_window", 128)
                                      .add_float("gemma2.attn_logit_softcapping", 20)
                                      .add_float("gemma2.final_logit_softcapping", 10));
  EXPECT_EQ(config.score_cap, 20);
  EXPECT_EQ(config.logit_cap, 10);
  EXPECT_EQ(config.embedding_scale, 8);
  EXPECT_FLOAT_EQ(config.attention_scale, 1 / std::sqrt(32.0F));
  EXPECT_TRUE(config.has_pre_norms && config.has_post_norms && !config.has_qk_norm && !config.rope_interleaved);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(ropes_of(config), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(config.layers[0].window, 128);
  EXPECT_EQ(config.layers[1].window, 0);
  EXPECT_EQ(config.layers[2].window, 128);
  // 27B, told by its layers; and what the first files leave out.
  const auto bytes = gemma2(46).build();
  const ModelConfig old = read_model_config(GgufFile(bytes), 8192);
  EXPECT_FLOAT_EQ(old.attention_scale, 1 / std::sqrt(64 / 4.0F));
  EXPECT_EQ(old.score_cap, 50);
  EXPECT_EQ(old.logit_cap, 30);
  EXPECT_EQ(old.layers[44].window, 4096);
  EXPECT_EQ(old.layers[45].window, 0);
  const ModelConfig uncapped =
      read(gemma2(3).add_float("gemma2.attn_logit_softcapping", 0).add_float("gemma2.final_logit_softcapping", 0));
  EXPECT_EQ(uncapped.score_cap, 0);
  EXPECT_EQ(uncapped.logit_cap, 0);
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    EXPECT_THAT(error_of(gemma2(3).add_float(std::string("gemma2.") + name, -1)), HasSubstr(name));
    EXPECT_THAT(error_of(small_llama().add_float(std::string("llama.") + name, 30)), HasSubstr(name));
  }
}

// Gemma 3's by its authors tell of one that they do not hold.
TEST(ModelFamilies, FilesMayTellOfAnEncoderOfImages) {
  EXPECT_EQ(error_of(small_family("gemma3")
                         .add_uint("gemma3.attention.sliding_window", 128)
                         .add_uint("gemma3.mm.tokens_per_image", 256)
                         .add_uint("gemma3.vision.block_count", 27)),
            "");
  EXPECT_THAT(error_of(small_family("gemma3").add_uint("gemma3.attention.sliding_window", 128).add_uint("gemma3.visions", 1)),
              HasSubstr("gemma3.visions: the key is unknown"));
}

TEST(ModelFamilies, ExpertsOfQwen2AndGranite) {
  const auto with_experts = [](const std::string& arch) {
    return small_family(arch).add_uint(arch + ".expert_count", 8).add_uint(arch + ".expert_used_count", 2);
  };
  const auto qwen = [&] {
    return with_experts("qwen2moe").add_uint("qwen2moe.expert_feed_forward_length", 32);
  };
  const ModelConfig config = read(qwen().add_uint("qwen2moe.expert_shared_feed_forward_length", 96));
  EXPECT_FALSE(config.experts.normalises);
  EXPECT_TRUE(config.experts.weighs_shared && config.has_qkv_bias);
  EXPECT_EQ(config.experts.shared_ffn_size, 96);
  EXPECT_EQ(config.experts.ffn_size, 32);
  EXPECT_THAT(error_of(qwen()), HasSubstr("qwen2moe.expert_shared_feed_forward_length: the key is missing"));
  EXPECT_THAT(error_of(qwen().add_uint("qwen2moe.expert_shared_feed_forward_length", 96).add_uint("qwen2moe.expert_shared_count", 2)),
              HasSubstr("expert_shared_feed_forward_length: 96, but 2 experts of 32 are shared"));
  EXPECT_THAT(error_of(small_family("qwen2moe")), HasSubstr("qwen2moe.expert_count: the key is missing"));
  EXPECT_THAT(error_of(qwen().add_uint("qwen2moe.expert_shared_feed_forward_length", 0)),
              HasSubstr("expert_shared_feed_forward_length: 0 leaves nothing to weigh"));
  // As Qwen 3 Coder's files have it, which have none.
  EXPECT_EQ(read(with_experts("qwen3moe")
                     .add_uint("qwen3moe.expert_feed_forward_length", 32)
                     .add_uint("qwen3moe.expert_shared_feed_forward_length", 0))
                .experts.shared_ffn_size,
            0);
  const ModelConfig granite = read(with_experts("granitemoe").add_float("granitemoe.logit_scale", 4));
  EXPECT_EQ(granite.output_norm_scale, 0.25f);
  EXPECT_TRUE(granite.experts.normalises && !granite.experts.weighs_shared && granite.rope_interleaved);
  EXPECT_EQ(granite.experts.ffn_size, 128);
}

GgufBuilder small_glm4moe() {
  return small_family("glm4moe")
      .add_uint("glm4moe.expert_count", 8)
      .add_uint("glm4moe.expert_used_count", 2)
      .add_uint("glm4moe.expert_feed_forward_length", 32)
      .add_uint("glm4moe.expert_shared_count", 1)
      .add_uint("glm4moe.leading_dense_block_count", 1)
      .add_uint("glm4moe.rope.dimension_count", 8)
      .add_tensor("blk.3.exp_probs_b.bias", {8}, GgmlType::kF32, 32);
}

TEST(ModelFamilies, TensorsTellWhatAttentionOfGlm45Has) {
  const ModelConfig config = read(small_glm4moe());
  EXPECT_FALSE(config.has_qkv_bias || config.has_qk_norm || config.rope_interleaved || config.has_post_norms);
  EXPECT_EQ(config.rope_dim, 8);
  EXPECT_EQ(config.num_layers(), 4);
  EXPECT_FALSE(config.layers[0].has_experts);
  EXPECT_TRUE(config.layers[1].has_experts);
  EXPECT_EQ(config.experts.gating, ExpertGating::kSigmoid) << "where the file does not say";
  EXPECT_FALSE(config.experts.normalises);
  EXPECT_EQ(config.experts.shared_ffn_size, 32);
  EXPECT_TRUE(read(small_glm4moe().add_tensor("blk.0.attn_q.bias", {64}, GgmlType::kF32, 256)).has_qkv_bias);
  EXPECT_TRUE(read(small_glm4moe().add_tensor("blk.0.attn_q_norm.weight", {16}, GgmlType::kF32, 64)).has_qk_norm);
  EXPECT_THAT(error_of(small_family("glm4moe")), HasSubstr("glm4moe.expert_count: the key is missing"));
}

TEST(ModelFamilies, ExpertsOfDotsAndErnie) {
  const auto with_experts = [](const std::string& arch) {
    return small_family(arch)
        .add_uint(arch + ".expert_count", 8)
        .add_uint(arch + ".expert_used_count", 2)
        .add_uint(arch + ".expert_feed_forward_length", 32)
        .add_uint(arch + ".expert_shared_count", 2)
        .add_uint(arch + ".leading_dense_block_count", 1)
        .add_tensor("blk.1.exp_probs_b.bias", {8}, GgmlType::kF32, 32);
  };
  const ModelConfig dots = read(with_experts("dots1"));
  EXPECT_EQ(dots.experts.gating, ExpertGating::kSigmoid);
  EXPECT_TRUE(dots.has_qk_norm && !dots.experts.normalises && !dots.rope_interleaved && !dots.layers[0].has_experts);
  const auto ernie = [&](std::uint32_t step) {
    return with_experts("ernie4_5-moe").add_uint("ernie4_5-moe.interleave_moe_layer_step", step);
  };
  const ModelConfig config = read(ernie(1).add_uint("ernie4_5-moe.expert_shared_feed_forward_length", 64));
  EXPECT_EQ(config.experts.gating, ExpertGating::kSoftmax);
  EXPECT_TRUE(config.experts.normalises && config.rope_interleaved && config.layers[1].has_experts);
  EXPECT_EQ(config.experts.shared_ffn_size, 64);
  EXPECT_THAT(error_of(ernie(2)), HasSubstr("ernie4_5-moe.interleave_moe_layer_step: values other than 1"));
  // Elsewhere the bias does not tell how experts are ranked.
  EXPECT_THAT(error_of(with_experts("qwen3moe")), HasSubstr("qwen3moe.expert_gating_func: the key is missing"));
}

TEST(ModelFamilies, LayersThatPredictFurtherTokensAreLeftOut) {
  const auto with_next = [](std::uint32_t count) { return small_glm4moe().add_uint("glm4moe.nextn_predict_layers", count); };
  const auto add_norm = [](GgufBuilder builder) { return builder.add_tensor("blk.3.attn_norm.weight", {64}, GgmlType::kF32, 256); };
  EXPECT_EQ(read(with_next(0)).num_layers(), 4);
  const ModelConfig config = read(with_next(2));
  EXPECT_EQ(config.num_layers(), 2);
  for (const char* name : {"blk.2.attn_norm.weight", "blk.3.nextn.eh_proj.weight"}) EXPECT_TRUE(is_left_out(config, name)) << name;
  for (const char* name : {"blk.1.attn_norm.weight", "blk.4.attn_norm.weight", "blk.-2.x", "blk.2", "blk.2x", "blk.", "blk.99999999999.x",
                           "output.weight"})
    EXPECT_FALSE(is_left_out(config, name)) << name;
  EXPECT_THAT(error_of(with_next(4)), HasSubstr("glm4moe.nextn_predict_layers: 4 of 4 layers, and none is left"));
  // A layer of the model's own is not given up for one of these.
  EXPECT_THAT(error_of(add_norm(with_next(1))), HasSubstr("tensor 'blk.3.nextn.eh_proj.weight' is missing"));
  EXPECT_EQ(read(add_norm(with_next(1)).add_tensor("blk.3.nextn.eh_proj.weight", {128, 64}, GgmlType::kF32, 32768)).num_layers(), 3);
  // What other families' files have there is refused by its tensors' names.
  EXPECT_EQ(read(small_llama().add_uint("llama.nextn_predict_layers", 1)).num_layers(), 2);
}

}  // namespace
}  // namespace larder
