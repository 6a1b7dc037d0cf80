// Folders as Hugging Face keeps models: what is read, and what is refused by name.
#include "model/files/hf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv/tiers/tier_test_support.h"
#include "model/files/hf_classes.h"
#include "model/files/hf_text_part.h"
#include "model/files/model_files.h"
#include "model/files/safetensors.h"
#include "model/forward/golden.h"
#include "model/vocabulary.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using nlohmann::json;

const std::string kGolden = LARDER_SOURCE_DIR "/tests/golden/model/";

// A copy of a folder, to be changed.
class HfModelTest : public ::testing::Test {
 protected:
  void copy(const std::string& name) {
    fs::remove_all(path());
    fs::copy(kGolden + name, path());
    for (const auto& entry : fs::directory_iterator(path()))
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
  std::string path(const std::string& name = "") const { return temp_.path() + "/model" + (name.empty() ? "" : "/" + name); }
  void edit(const std::string& name, const std::function<void(json&)>& change) const {
    json value = read_json(path(name));
    change(value);
    std::ofstream(path(name)) << value;
  }
  // Of the copy, with a config.json that has more members, or others.
  std::string error_of_config(const char* model, const json& members) {
    copy(model);
    edit("config.json", [&](json& config) { config.update(members); });
    return error();
  }
  std::string error_of_tokenizer(const std::function<void(json&)>& change) {
    copy("tiny_hf_llama");
    edit("tokenizer.json", change);
    return error();
  }
  std::string error() const {
    try {
      const ModelFiles files(path());
      (void)weights_size_bytes(read_model_config(files.gguf()), files.gguf());
      (void)Tokenizer(read_vocabulary(files.gguf()));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  ModelConfig config_of(const char* model, const json& members) {
    EXPECT_EQ(error_of_config(model, members), "");
    return read_model_config(ModelFiles(path()).gguf());
  }

 private:
  TempDir temp_;
};

TEST_F(HfModelTest, WhatChangesTheModelIsRefusedByName) {
  const std::pair<json, const char*> cases[] = {
      {{{"architectures", {"DeepseekV3ForCausalLM"}}}, "config.json: architectures: 'DeepseekV3ForCausalLM' is read from GGUF"},
      {{{"architectures", {"FalconForCausalLM"}}}, "architectures: 'FalconForCausalLM' is not supported; these are: Llama"},
      {{{"architectures", json::array()}}, "architectures: is not a list of one name"},
      {{{"quantization_config", {{"quant_method", "fp8"}}}}, "quantization_config: not supported"},
      {{{"attention_bias", true}}, "attention_bias: not supported"},
      {{{"mlp_bias", true}}, "mlp_bias: not supported"},
      {{{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping: not supported"},
      {{{"hidden_act", "gelu"}}, "hidden_act: 'gelu' is not supported; silu is"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: values other than 1"},
      {{{"residual_multiplier", 0.2}}, "residual_multiplier: unknown, and it might change what is computed"},
      {{{"sliding_window", 128}}, "sliding_window: not supported"},
      {{{"hidden_size", nullptr}}, "hidden_size: missing"},
      {{{"hidden_size", "64"}}, "hidden_size: is not an integer"},
      {{{"num_hidden_layers", 0}}, "num_hidden_layers: 0 is not in [1,"},
      {{{"num_hidden_layers", 1 << 30}}, "num_hidden_layers: 1073741824 is more than 1024"},
      {{{"num_hidden_layers", 3}}, "tensor 'model.layers.2.input_layernorm.weight' is missing"},
      {{{"num_hidden_layers", 1}}, "tensor 'model.layers.1."},
      {{{"hidden_size", 32}}, "token_embd.weight"},
      {{{"tie_word_embeddings", nullptr}, {"rope_parameters", {{"rope_type", "longrope"}, {"rope_theta", 10.0}}}},
       "config.json: original_max_position_embeddings: missing"},
      {{{"rope_parameters", {{"rope_type", "dynamic"}, {"rope_theta", 10.0}}}}, "rope_parameters: rope_type: 'dynamic' is not supported"},
      {{{"rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 10.0}}}}, "rope_parameters: factor: missing"},
      {{{"rope_parameters", {{"rope_type", "default"}, {"twist", 1}}}}, "rope_parameters: twist: unknown"},
      {{{"rope_parameters", {{"rope_type", "yarn"}, {"type", "linear"}}}}, "type: is not the rope_type"},
      {{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}, "rope_scaling: is not what rope_parameters says"},
      {{{"rope_theta", 77.0}}, "rope_theta: is another one elsewhere"},
  };
  for (const auto& [members, expected] : cases)
    EXPECT_THAT(error_of_config("tiny_hf_llama", members), HasSubstr(expected)) << members;
  EXPECT_THAT(error_of_config("tiny_hf_qwen3moe", {{"mlp_only_layers", {0}}}), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error_of_config("tiny_hf_qwen3moe", {{"num_local_experts", 9}}), HasSubstr("mlp.experts.8.gate_proj.weight' is missing"));
  EXPECT_THAT(error_of_config("tiny_hf_qwen3moe", {{"architectures", {"MixtralForCausalLM"}}, {"rope_parameters", nullptr}}),
              HasSubstr("rope_theta: missing"));
  // Their classes' own are others than the 1e4 of most.
  for (const char* model : {"tiny_hf_smollm3", "tiny_hf_ernie4_5", "tiny_hf_olmo3", "tiny_hf_gpt_oss", "tiny_hf_mistral3"}) {
    copy(model);
    edit("config.json", [](json& config) {
      json& rope = config["rope_parameters"];
      (rope.contains("full_attention") ? rope["full_attention"] : rope).erase("rope_theta");
    });
    EXPECT_THAT(error(), HasSubstr("rope_theta: missing")) << model;
  }
  for (const char* model : {"tiny_hf_gpt_oss", "tiny_hf_mistral3"})
    EXPECT_THAT(error_of_config(model, {{"rope_parameters", nullptr}, {"rope_theta", 1e6}}), HasSubstr("rope_scaling: missing"));
  for (const char* model : {"tiny_hf_olmo3", "tiny_hf_exaone4"}) {
    copy(model);
    edit("config.json", [](json& config) { config.erase("layer_types"), config.erase("sliding_window"); });
    EXPECT_THAT(error(), HasSubstr("missing")) << model;
  }
  EXPECT_THAT(error_of_config("tiny_hf_gemma3", {{"layer_types", {"full_attention"}}}), HasSubstr("layer_types: is not a list of 6"));
  EXPECT_THAT(error_of_config("tiny_hf_gemma3", {{"use_bidirectional_attention", true}}), HasSubstr("use_bidirectional"));
  EXPECT_THAT(error_of_config("tiny_hf_phi3", {{"lm_head_bias", true}}), HasSubstr("lm_head_bias: not supported"));
  EXPECT_THAT(error_of_config("tiny_hf_phi3", {{"partial_rotary_factor", 0.5}}), HasSubstr("is not that of rope_parameters"));
  EXPECT_THAT(error_of_config("tiny_hf_phi3", {{"original_max_position_embeddings", 128}}), HasSubstr("is not that beside it"));
  EXPECT_THAT(error_of_config("tiny_hf_phi3", {{"head_dim", 32}}), HasSubstr("long_factor: is not a list of 12 numbers"));
}

// What published files of a class say beside what is read, and what would change the model.
TEST_F(HfModelTest, KeysThatSayThatSomethingIsNotThereAreTaken) {
  const struct {
    const char* model;
    json members, others;
  } cases[] = {
      // Qwen2.5's base models; the class is that of qwen2moe but for the experts.
      {"tiny_hf_qwen2moe", {{"use_mrope", false}, {"qkv_bias", true}}, {{"use_mrope", true}}},
      // Qwen3 Coder
      {"tiny_hf_qwen3moe", {{"qkv_bias", false}}, {{"qkv_bias", true}}},
      {"tiny_hf_qwen3moe", {{"use_qk_norm", true}}, {{"use_qk_norm", false}}},
      {"tiny_hf_qwen3moe", {{"shared_expert_intermediate_size", 0}}, {{"shared_expert_intermediate_size", 64}}},
      {"tiny_hf_ernie4_5", {{"compression_ratio", 1.0}, {"use_bias", false}}, {{"compression_ratio", 2.0}}},
      {"tiny_hf_llama",
       {{"pretraining_tp", 1}, {"rope_interleaved", false}, {"max_sequence_length", 2048}, {"tokenizer_class", "LlamaTokenizer"}},
       {{"mlp_bias", true}}},
  };
  for (const auto& [model, members, others] : cases) {
    EXPECT_EQ(error_of_config(model, members), "") << members;
    EXPECT_THAT(error_of_config(model, others), HasSubstr(others.begin().key() + ":")) << others;
  }
}

TEST_F(HfModelTest, FilesThatAreMissingAreNamed) {
  copy("tiny_hf_llama");
  fs::remove(path("model-00002-of-00002.safetensors"));
  EXPECT_THAT(error(), HasSubstr("model-00002-of-00002.safetensors"));
  fs::remove(path("model.safetensors.index.json"));
  EXPECT_THAT(error(), HasSubstr("has neither model.safetensors nor"));
  fs::remove(path("config.json"));
  EXPECT_THAT(error(), HasSubstr("a folder without config.json"));
  copy("tiny_hf_llama");
  fs::remove(path("tokenizer.json"));
  EXPECT_THAT(error(), HasSubstr("tokenizer.json: no such file"));
  copy("tiny_hf_llama");
  edit("model.safetensors.index.json", [](json& index) { index["weight_map"]["model.norm.weight"] = "../x.safetensors"; });
  EXPECT_THAT(error(), HasSubstr("weight_map: 'model.norm.weight' is not in a file *.safetensors beside it"));
  copy("tiny_hf_llama");
  std::ofstream(path("config.json")) << "{\"a\": ";
  EXPECT_THAT(error(), HasSubstr("config.json: not valid JSON at byte"));
  copy("tiny_hf_llama");
  fs::resize_file(path("model-00001-of-00002.safetensors"), 50'000);
  EXPECT_THAT(error(), HasSubstr("model-00001-of-00002.safetensors: safetensors: tensor '"));
}

TEST_F(HfModelTest, OtherTokenizersAreRefused) {
  const std::pair<std::function<void(json&)>, const char*> cases[] = {
      {[](json& t) { t["model"]["type"] = "Unigram"; }, "model: type: 'Unigram' is not supported"},
      {[](json& t) { t["normalizer"] = {{"type", "NFC"}}; }, "pre_tokenizer: these steps together, 'nfc | llama3 bytes' with ignore_merges"},
      {[](json& t) { t["model"]["merges"] = json::array(); }, "model: merges: missing or empty"},
      {[](json& t) { t["model"]["merges"][0] = {"zz", "q", "r"}; }, "model.merges[0]: is not a pair"},
      {[](json& t) { t["model"]["merges"][0] = {"zz", "qqq"}; }, "merges[0]"},
      {[](json& t) { t["model"]["vocab"]["!"] = -1; }, "the id of '!' is not one"},
      {[](json& t) { t["model"]["vocab"]["!"] = 1u << 30; }, "token '!' has the id 1073741824"},
      {[](json& t) { t["model"]["vocab"]["!"] = 2; }, "have the id 2"},
      {[](json& t) { t["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix"},
      {[](json& t) { t["normalizer"] = {{"type", "NFKC"}}; }, "normalizer: {\"type\":\"NFKC\"} is not one that Larder knows"},
      {[](json& t) { t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }, "pre_tokenizer: {"},
      {[](json& t) { t["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }, "pre_tokenizer: {"},
      {[](json& t) { t["added_tokens"][0]["single_word"] = true; }, "single_word: true, of '<|begin|>'"},
      {[](json& t) { t["post_processor"] = {{"type", "BertProcessing"}}; }, "'BertProcessing' is not supported"},
  };
  for (const auto& [change, expected] : cases) EXPECT_THAT(error_of_tokenizer(change), HasSubstr(expected));
}

// What the library finds in the normalized text, behind the others, is not found here in the text as it is.
TEST_F(HfModelTest, NormalizedTokensAreTakenWhereTheyAreFoundAlike) {
  const auto error_with = [&](const char* model, const std::string& content, bool is_qwen2 = false) {
    copy(model);
    edit("tokenizer.json", [&](json& t) {
      for (json& token : t["added_tokens"]) token["normalized"] = false;
      t["added_tokens"].push_back({{"id", 319}, {"content", content}, {"special", false}, {"normalized", true}});
      if (!is_qwen2) return;
      t["normalizer"] = {{"type", "NFC"}};
      t["model"]["ignore_merges"] = false;
      auto& regex = t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get_ref<std::string&>();
      regex.erase(regex.find("{1,3}"), 5);
    });
    return error();
  };
  EXPECT_EQ(error_with("tiny_hf_llama", "<other>"), "");
  EXPECT_EQ(error_with("tiny_hf_llama", "caf\u00e9"), "");
  EXPECT_EQ(error_with("tiny_hf_llama", "<other>", true), "");
  EXPECT_THAT(error_with("tiny_hf_llama", "caf\u00e9", true), HasSubstr("is not supported: the normalizer changes it"));
  EXPECT_THAT(error_with("tiny_hf_llama", "<tool>s"), HasSubstr("'<tool>s', is not supported: a text may hold it and '<tool>'"));
  EXPECT_THAT(error_with("tiny_hf_llama", "a<tool"), HasSubstr("may hold it and '<tool>'"));
  EXPECT_THAT(error_with("tiny_hf_llama", ">b"), HasSubstr("may hold it and"));
  EXPECT_EQ(error_with("tiny_hf_gemma3", "[other]"), "");
  EXPECT_THAT(error_with("tiny_hf_gemma3", "[my tool]"), HasSubstr("the normalizer changes it"));
  EXPECT_THAT(error_with("tiny_hf_gemma3", "[\u2581]"), HasSubstr("the normalizer changes it"));
}

TEST_F(HfModelTest, WeightsOfExpertsComeToOneWhereTheFileSaysSo) {
  EXPECT_TRUE(config_of("tiny_hf_qwen3moe", json::object()).experts.normalises);
  EXPECT_FALSE(config_of("tiny_hf_qwen3moe", {{"norm_topk_prob", false}}).experts.normalises);
}

// As older files say it, beside rope_theta.
TEST_F(HfModelTest, RotationsAreReadInBothForms) {
  const auto rope = [](const ModelConfig& config) { return config.ropes.at(0); };
  const json old = {{"rope_parameters", nullptr}, {"rope_theta", 500.0}};
  const auto with = [&](const json& scaling) {
    json members = old;
    members["rope_scaling"] = scaling;
    return rope(config_of("tiny_hf_llama", members));
  };
  const RopeConfig plain = rope(config_of("tiny_hf_llama", old));
  ASSERT_EQ(plain.frequencies.size(), 8u);
  EXPECT_DOUBLE_EQ(plain.frequencies[1], std::pow(500.0, -2.0 / 16));
  const RopeConfig linear = with({{"type", "linear"}, {"factor", 4.0}});
  EXPECT_DOUBLE_EQ(linear.frequencies[3], plain.frequencies[3] / 4);
  const RopeConfig llama3 = with({{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}});
  EXPECT_DOUBLE_EQ(llama3.frequencies[0], plain.frequencies[0]);
  EXPECT_NEAR(llama3.frequencies[7], plain.frequencies[7] / 8, 1e-9);
  const RopeConfig yarn = with({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}});
  EXPECT_DOUBLE_EQ(yarn.magnitude, 0.1 * std::log(4.0) + 1);
  EXPECT_DOUBLE_EQ(with({{"type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.5}}).magnitude, 1.5);
}

TEST_F(HfModelTest, BothFormsOfARotationMayBeThereAndAgree) {
  const auto rope = [&](const json& members) { return config_of("tiny_hf_llama", members).ropes.at(0).frequencies; };
  const json linear = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 500.0}};
  const auto plain = rope({{"rope_parameters", nullptr}, {"rope_theta", 500.0}});
  const auto stretched = rope({{"rope_parameters", linear}});
  EXPECT_DOUBLE_EQ(stretched[3], plain[3] / 4);
  EXPECT_EQ(rope({{"rope_parameters", linear}, {"rope_theta", 500}, {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}), stretched);
  EXPECT_EQ(rope({{"rope_parameters", linear}, {"rope_scaling", json::object()}}), stretched);
  EXPECT_EQ(rope({{"rope_parameters", nullptr}, {"rope_scaling", linear}}), stretched);
}

TEST_F(HfModelTest, AHeadThatDiffersCountsThoughTheFileTiesIt) {
  const auto has_head = [&] { return ModelFiles(path()).gguf().find_tensor("output.weight") != nullptr; };
  (void)config_of("tiny_hf_olmo2", {{"tie_word_embeddings", true}});
  EXPECT_TRUE(has_head());
  std::ifstream in(path("model.safetensors"), std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_writable_bytes(std::span(file));
  const std::vector<SafetensorsTensor> tensors = read_safetensors(bytes);
  const auto data_of = [&](const char* name) { return std::ranges::find(tensors, name, &SafetensorsTensor::name)->data; };
  const auto head = data_of("lm_head.weight");
  std::ranges::copy(data_of("model.embed_tokens.weight"), bytes.begin() + (head.data() - bytes.data()));
  std::ofstream(path("model.safetensors"), std::ios::binary) << file;
  EXPECT_FALSE(has_head());
}

TEST_F(HfModelTest, TextPartsOfModelsThatReadImages) {
  EXPECT_EQ(config_of("tiny_hf_gemma3_images", json::object()).layers[5].window, 0);
  const auto error_of_part = [&](const std::function<void(json&)>& change) {
    copy("tiny_hf_gemma3_images");
    edit("config.json", change);
    return error();
  };
  EXPECT_THAT(error_of_part([](json& c) { c["text_config"]["model_type"] = "qwen3"; }), HasSubstr("text_config: model_type: 'qwen3'"));
  EXPECT_THAT(error_of_part([](json& c) { c.erase("text_config"); }), HasSubstr("config.json: text_config: missing"));
  EXPECT_THAT(error_of_part([](json& c) { c["text_config"] = 1; }), HasSubstr("text_config: is not an object"));
  EXPECT_THAT(error_of_part([](json& c) { c["quantization_config"] = {{"bits", 4}}; }), HasSubstr("quantization_config: not supported"));
  EXPECT_THAT(error_of_part([](json& c) { c["mixer"] = 4; }), HasSubstr("config.json: mixer: unknown"));
  EXPECT_THAT(error_of_part([](json& c) { c["architectures"] = {"Mistral3ForConditionalGeneration"}; }), HasSubstr("'gemma3_text'"));
  // What published files leave out is the class's own: heads of 256, 8 of them.
  EXPECT_THAT(error_of_part([](json& c) {
    for (const char* key : {"head_dim", "num_attention_heads", "num_key_value_heads", "query_pre_attn_scalar"}) c["text_config"].erase(key);
  }), HasSubstr("blk.0.attn_q.weight': 64 rows of 32 values; 2048 of 32 are expected"));
  // Turns end as the whole says.
  EXPECT_EQ(error_of_part([](json& c) { c["eos_token_id"] = {1, 7}; }), "");
  EXPECT_THAT(Tokenizer(read_vocabulary(ModelFiles(path()).gguf())).end_tokens(), ::testing::Contains(7));
}

TEST(HfClasses, EachIsOfAFamily) {
  for (const HfClass& known : hf_classes()) EXPECT_NE(find_family(known.architecture), nullptr) << known.name;
}

TEST(HfTextPart, TensorsAreNamedAsInAFolderOfTheirOwn) {
  std::vector<SafetensorsTensor> tensors;
  for (const char* name : {"language_model.model.norm.weight", "language_model.lm_head.weight", "model.language_model.layers.0.x",
                           "vision_tower.a", "model.vision_tower.b", "multi_modal_projector.c", "lm_head.weight", "other"}) {
    tensors.emplace_back();
    tensors.back().name = name;
  }
  take_text_tensors(tensors);
  std::vector<std::string> names;
  for (const SafetensorsTensor& tensor : tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ::testing::ElementsAre("model.norm.weight", "lm_head.weight", "model.layers.0.x", "lm_head.weight", "other"));
}

// Tensors are those of Llama.
TEST_F(HfModelTest, FactorsAndStillLayersOfOtherClasses) {
  const auto as = [](const char* name, json members) {
    members["architectures"] = {name};
    return members;
  };
  const json factors = {{"attention_multiplier", 0.5}, {"embedding_multiplier", 12.0}, {"residual_multiplier", 0.5}, {"logits_scaling", 4.0}};
  const ModelConfig granite = config_of("tiny_hf_llama", as("GraniteForCausalLM", factors));
  EXPECT_EQ(granite.attention_scale, 0.5f);
  EXPECT_EQ(granite.embedding_scale, 24);
  EXPECT_EQ(granite.output_norm_scale, 0.25f);
  EXPECT_FALSE(granite.rope_interleaved);
  EXPECT_THAT(error_of_config("tiny_hf_llama", as("GraniteForCausalLM", json::object())), HasSubstr("attention_multiplier: missing"));
  EXPECT_THAT(error_of_config("tiny_hf_llama", factors), HasSubstr("multiplier: unknown"));
  const auto ropes = [&](const json& members) {
    const ModelConfig config = config_of("tiny_hf_llama", as("SmolLM3ForCausalLM", members));
    return std::vector<int>{config.layers[0].rope, config.layers[1].rope};
  };
  EXPECT_EQ(ropes(json::object()), (std::vector<int>{0, 0}));
  EXPECT_EQ(ropes({{"no_rope_layers", {0, 1}}, {"no_rope_layer_interval", 1}}), (std::vector<int>{1, 0}));
  EXPECT_EQ(ropes({{"no_rope_layer_interval", 2}, {"use_sliding_window", false}, {"sliding_window", 32}}), (std::vector<int>{0, 1}));
  const std::pair<json, const char*> cases[] = {
      {as("SmolLM3ForCausalLM", {{"no_rope_layers", {1}}}), "no_rope_layers: is not a list of 2 numbers"},
      {as("SmolLM3ForCausalLM", {{"no_rope_layers", {1, 2}}}), "no_rope_layers: is not a list of 2 numbers"},
      {as("SmolLM3ForCausalLM", {{"use_sliding_window", true}, {"sliding_window", 32}}), "sliding_window: not supported"},
      {as("SeedOssForCausalLM", {{"attention_bias", false}}), "attention_bias: false is not supported"},
      {as("SeedOssForCausalLM", {{"attention_bias", true}}), "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"},
      {as("Ernie4_5ForCausalLM", {{"use_bias", true}}), "use_bias: not supported"},
      {as("Exaone4ForCausalLM", {{"sliding_window", 32}}), "layer_types: missing"},
      {as("Olmo2ForCausalLM", {{"sliding_window", 32}}), "sliding_window: not supported"},
      {as("Glm4ForCausalLM", {{"partial_rotary_factor", 0.01}}), "is not an even number of dimensions"},
  };
  for (const auto& [members, expected] : cases) EXPECT_THAT(error_of_config("tiny_hf_llama", members), HasSubstr(expected)) << members;
}

TEST_F(HfModelTest, CapsOfGemma2) {
  const ModelConfig config = config_of("tiny_hf_gemma2", {{"layer_types", nullptr}, {"sliding_window_size", 20}});
  EXPECT_EQ(config.score_cap, 2);
  EXPECT_EQ(config.logit_cap, 3);
  EXPECT_FLOAT_EQ(config.attention_scale, 1 / std::sqrt(24.0F));
  EXPECT_EQ(config.layers[0].window, 20);
  EXPECT_EQ(config.layers[1].window, 0);
  const json none = {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}};
  const ModelConfig uncapped = config_of("tiny_hf_gemma2", none);
  EXPECT_EQ(uncapped.score_cap, 0);
  EXPECT_EQ(uncapped.logit_cap, 0);
  const std::pair<json, const char*> cases[] = {
      {{{"attn_logit_softcapping", 0.0}}, "attn_logit_softcapping: is not a positive number"},
      {{{"final_logit_softcapping", -1.0}}, "final_logit_softcapping: is not a positive number"},
      {{{"query_pre_attn_scalar", nullptr}}, "query_pre_attn_scalar: missing"},
      {{{"sliding_window", nullptr}}, "sliding_window: missing"},
      {{{"sliding_window_size", 30}}, "sliding_window_size: is not sliding_window"},
      {{{"attention_bias", true}}, "attention_bias: not supported"},
      {{{"hidden_activation", "gelu"}}, "hidden_activation: 'gelu' is not supported"},
      {{{"use_bidirectional_attention", true}}, "use_bidirectional_attention: not supported"},
  };
  for (const auto& [members, expected] : cases)
    EXPECT_THAT(error_of_config("tiny_hf_gemma2", members), HasSubstr(expected)) << members;
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    copy("tiny_hf_gemma2");
    edit("config.json", [&](json& members) { members.erase(name); });
    EXPECT_THAT(error(), HasSubstr(std::string(name) + ": missing; null = none"));
  }
}

TEST_F(HfModelTest, ExpertsOfGlm45) {
  const ModelConfig config = config_of("tiny_hf_glm4moe", json::object());
  EXPECT_EQ(config.num_layers(), 2);
  EXPECT_TRUE(config.has_qkv_bias && config.experts.normalises && config.layers[1].has_experts);
  EXPECT_FALSE(config.has_qk_norm || config.layers[0].has_experts);
  EXPECT_EQ(config.rope_dim, 8);
  // What the class has where a file says nothing.
  const ModelConfig silent = config_of("tiny_hf_glm4moe", {{"first_k_dense_replace", nullptr}, {"n_group", nullptr}, {"topk_group", nullptr},
                                                           {"norm_topk_prob", nullptr}, {"routed_scaling_factor", nullptr},
                                                           {"num_nextn_predict_layers", nullptr}, {"use_qk_norm", nullptr}});
  EXPECT_EQ(silent.experts.scale, 1);
  EXPECT_TRUE(silent.experts.normalises && silent.layers[1].has_experts && !silent.layers[0].has_experts);
  const std::pair<json, const char*> cases[] = {
      {{{"use_qk_norm", true}}, "tensor 'model.layers.0.self_attn.q_norm.weight' is missing"},
      {{{"attention_bias", false}}, "_proj.bias' is not part of a model of this architecture"},
      {{{"num_nextn_predict_layers", 0}}, "tensor 'model.layers.2."},
      {{{"first_k_dense_replace", 0}}, "tensor 'model.layers.0.mlp.gate.weight' is missing"},
      {{{"first_k_dense_replace", 2}}, "first_k_dense_replace: 2 of 2 layers leaves none with experts"},
      {{{"n_routed_experts", 9}}, "mlp.experts.8.gate_proj.weight' is missing"},
      {{{"n_routed_experts", 5000}}, "n_routed_experts: more than 1024"},
      {{{"sliding_window", 32}}, "sliding_window: not supported"},
  };
  for (const auto& [members, expected] : cases) EXPECT_THAT(error_of_config("tiny_hf_glm4moe", members), HasSubstr(expected)) << members;
}

// As Phi 3's first folders say it, and its later ones.
TEST_F(HfModelTest, LongRope) {
  const ModelConfig config = config_of("tiny_hf_phi3", json::object());
  EXPECT_EQ(config.rope_dim, 12);
  EXPECT_NEAR(config.ropes[0].magnitude, std::sqrt(1 + std::log(4.0) / std::log(64.0)), 1e-12);
  EXPECT_NEAR(config.ropes[0].frequencies[5], std::pow(10000.0, -10.0 / 12) / 6.5, 1e-9);
  const json factors = read_json(path("config.json")).at("rope_parameters");
  const json old = {{"rope_parameters", nullptr}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.75},
                    {"rope_scaling", {{"type", "su"}, {"long_factor", factors.at("long_factor")},
                                      {"short_factor", factors.at("short_factor")}}}};
  const ModelConfig same = config_of("tiny_hf_phi3", old);
  EXPECT_EQ(same.ropes[0].frequencies, config.ropes[0].frequencies);
  EXPECT_EQ(same.ropes[0].magnitude, config.ropes[0].magnitude);
  json longer = old;
  longer["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(config_of("tiny_hf_phi3", longer).ropes[0].magnitude, 1.5);
  longer["rope_scaling"]["short_factor"][2] = 0;
  EXPECT_THAT(error_of_config("tiny_hf_phi3", longer), HasSubstr("short_factor: one is not a positive number"));
  // Phi 4 has neither.
  const ModelConfig plain = config_of("tiny_hf_phi3", {{"rope_parameters", {{"rope_theta", 250000.0}}}, {"sliding_window", nullptr},
                                                       {"original_max_position_embeddings", 256}});
  EXPECT_EQ(plain.ropes[0].magnitude, 1);
  EXPECT_EQ(plain.rope_dim, 16);
  EXPECT_EQ(plain.layers[1].window, 0);
}

TEST_F(HfModelTest, Windows) {
  const auto windows = [](const ModelConfig& config) {
    std::vector<int> result;
    for (const LayerConfig& layer : config.layers) result.push_back(layer.window);
    return result;
  };
  const json mistral = {{"architectures", {"MistralForCausalLM"}}, {"sliding_window", 20}};
  EXPECT_EQ(windows(config_of("tiny_hf_llama", mistral)), (std::vector<int>{20, 20}));
  // As Gemma's first files have it.
  const json old_gemma3 = {{"layer_types", nullptr}, {"_sliding_window_pattern", nullptr}, {"sliding_window_pattern", 3},
                           {"rope_parameters", nullptr}, {"rope_theta", 1e6}, {"rope_local_base_freq", 777.0}};
  const ModelConfig gemma3 = config_of("tiny_hf_gemma3", old_gemma3);
  EXPECT_EQ(windows(gemma3), (std::vector<int>{20, 20, 0, 20, 20, 0}));
  EXPECT_DOUBLE_EQ(gemma3.ropes.at(1).frequencies[1], std::pow(777.0, -2.0 / 32));
  EXPECT_FLOAT_EQ(gemma3.attention_scale, 1 / std::sqrt(32.0f));
  // What the classes would take 4096 for is not taken for none.
  EXPECT_THAT(error_of_config("tiny_hf_llama", {{"architectures", {"MistralForCausalLM"}}}), HasSubstr("sliding_window: missing"));
  EXPECT_THAT(error_of_config("tiny_hf_gemma3", {{"sliding_window", nullptr}}), HasSubstr("sliding_window: missing"));
  const json no_window = {{"architectures", {"MistralForCausalLM"}}, {"sliding_window", nullptr}};
  EXPECT_EQ(windows(config_of("tiny_hf_llama", no_window)), (std::vector<int>{0, 0}));
  // Files of Qwen state a window that none of their layers has.
  const json qwen = {{"use_sliding_window", false}, {"sliding_window", 20}, {"max_window_layers", 1}};
  EXPECT_EQ(windows(config_of("tiny_hf_qwen3moe", qwen)), (std::vector<int>{0, 0}));
}

TEST_F(HfModelTest, EndTokensAreThoseOfBothFiles) {
  copy("tiny_hf_llama");
  edit("config.json", [](json& config) { config["eos_token_id"] = 5; });
  std::ofstream(path("generation_config.json")) << R"({"eos_token_id": [7, 5]})";
  const ModelFiles files(path());
  const Tokenizer tokenizer(read_vocabulary(files.gguf()));
  const auto ends = tokenizer.end_tokens();
  EXPECT_THAT(std::vector<TokenId>(ends.begin(), ends.end()), ::testing::IsSupersetOf({5, 7, *tokenizer.find("<|end|>")}));
  edit("generation_config.json", [](json& config) { config["eos_token_id"] = 4000; });
  EXPECT_THAT(error(), HasSubstr("generation_config.json: eos_token_id: 4000 is not one of the 320 tokens"));
}

// transformers 5 takes no notice of the flags either.
TEST_F(HfModelTest, WhatATextBeginsWithStandsInItsTokenizer) {
  copy("tiny_hf_llama");
  edit("tokenizer_config.json", [](json& config) {
    config["add_bos_token"] = false;
    config["add_eos_token"] = true;
  });
  const Tokenizer tokenizer(read_vocabulary(ModelFiles(path()).gguf()));
  EXPECT_EQ(tokenizer.encode("a", true, true), (std::vector<TokenId>{*tokenizer.find("<|begin|>"), *tokenizer.find("a")}));
}

// As Phi 4's do.
TEST_F(HfModelTest, AddedTokensMayTakeTheSpacesBesideThemAlong) {
  copy("tiny_hf_llama");
  edit("tokenizer.json", [](json& t) {
    for (json& token : t["added_tokens"])
      if (token["content"] == "<|end|>") token["lstrip"] = token["rstrip"] = true;
  });
  const Tokenizer tokenizer(read_vocabulary(ModelFiles(path()).gguf()));
  const TokenId a = *tokenizer.find("a"), end = *tokenizer.find("<|end|>");
  EXPECT_EQ(tokenizer.encode("a \n<|end|>\n a", false, true), (std::vector<TokenId>{a, end, a}));
}

TEST_F(HfModelTest, TemplatesByNameAreJoined) {
  copy("tiny_hf_llama");
  fs::remove(path("chat_template.jinja"));
  edit("tokenizer_config.json", [](json& config) {
    config["chat_template"] = {{{"name", "default"}, {"template", "plain"}}, {{"name", "tool_use"}, {"template", "tools"}}};
  });
  const ChatTemplate joined(read_chat_template(ModelFiles(path()).gguf()));
  TemplateInput input;
  EXPECT_EQ(joined.render(input).text, "plain");
  input.tools = {{{"type", "function"}}};
  EXPECT_EQ(joined.render(input).text, "tools");
}

// As transformers writes them today.
TEST_F(HfModelTest, TheTemplateForToolsHasAFileOfItsOwn) {
  copy("tiny_hf_llama");
  fs::create_directory(path("additional_chat_templates"));
  std::ofstream(path("additional_chat_templates/tool_use.jinja")) << "tools";
  const ChatTemplate joined(read_chat_template(ModelFiles(path()).gguf()));
  TemplateInput input;
  EXPECT_EQ(joined.render(input).text, "<|assistant|>");
  input.tools = {{{"type", "function"}}};
  EXPECT_EQ(joined.render(input).text, "tools");
}

// As each of them is rendered alone.
TEST_F(HfModelTest, JoinedTemplatesKeepTheirSpaces) {
  copy("tiny_hf_llama");
  fs::remove(path("chat_template.jinja"));
  const std::string plain = "\n plain\n  ", tools = "  {%- macro m(x) %}({{ x }}){% endmacro %}\n{{ m(1) }}\n\n";
  edit("tokenizer_config.json", [&](json& config) {
    config["chat_template"] = {{{"name", "default"}, {"template", plain}}, {{"name", "tool_use"}, {"template", tools}}};
  });
  const ChatTemplate joined(read_chat_template(ModelFiles(path()).gguf()));
  TemplateInput input;
  EXPECT_EQ(joined.render(input).text, ChatTemplate(plain).render(input).text);
  input.tools = {{{"type", "function"}}};
  EXPECT_EQ(joined.render(input).text, ChatTemplate(tools).render(input).text);
}

// What the fingerprint of the tiers is made of.
TEST_F(HfModelTest, WeightsAndConfigurationAreTheModelsFiles) {
  copy("tiny_hf_llama");
  std::vector<std::string> names;
  const ModelFiles files(path());
  for (const MappedFile& file : files.files()) names.push_back(fs::path(file.path()).filename());
  EXPECT_EQ(names, (std::vector<std::string>{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}));
  EXPECT_GT(files.size_bytes(), 180'000u);
}

}  // namespace
}  // namespace larder
