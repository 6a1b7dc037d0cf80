#include "plan/published_models.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "plan/capacity.h"

namespace larder {
namespace {

// Totals of the published checkpoints (of the text model, without MTP's extra layer). A wrong
// width, depth, head count or tie shows in them.
TEST(PublishedModels, HaveTheirPublishedNumbersOfParameters) {
  const std::map<std::string, std::int64_t> published = {
      {"Llama 3 8B", 8030261248},         {"Llama 3 70B", 70553706496},
      {"Llama 3.1 8B", 8030261248},       {"Llama 3.1 70B", 70553706496},
      {"Llama 3.1 405B", 405853388800},   {"Llama 3.2 1B", 1235814400},
      {"Llama 3.2 3B", 3212749824},       {"Llama 3.3 70B", 70553706496},
      {"Mistral 7B", 7248023552},         {"Mistral 7B v0.1", 7241732096},
      {"Mixtral 8x7B", 46702792704},      {"Qwen 2.5 0.5B", 494032768},
      {"Qwen 2.5 1.5B", 1543714304},      {"Qwen 2.5 3B", 3085938688},
      {"Qwen 2.5 7B", 7615616512},        {"Qwen 2.5 14B", 14770033664},
      {"Qwen 2.5 32B", 32763876352},      {"Qwen 2.5 72B", 72706203648},
      {"Qwen 3 0.6B", 596049920},         {"Qwen 3 1.7B", 1720574976},
      {"Qwen 3 4B", 4022468096},          {"Qwen 3 8B", 8190735360},
      {"Qwen 3 14B", 14768307200},        {"Qwen 3 32B", 32762123264},
      {"Qwen 3 30B-A3B", 30532122624},    {"Qwen 3 235B-A22B", 235093634560},
      {"Gemma 2 2B", 2614341888},         {"Gemma 2 9B", 9241705984},
      {"Gemma 2 27B", 27227128320},       {"Gemma 3 270M", 268098176},
      {"Gemma 3 1B", 999885952},          {"Gemma 3 4B", 3880263168},
      {"Gemma 3 12B", 11766034176},       {"Gemma 3 27B", 27009346304},
      {"Phi-4", 14659507200},             {"SmolLM2 135M", 134515008},
      {"SmolLM2 360M", 361821120},        {"SmolLM2 1.7B", 1711376384},
      {"DeepSeek V3", 671026419200},      {"DeepSeek R1", 671026419200},
      {"gpt-oss 20B", 20914757184},       {"gpt-oss 120B", 116829156672},
      {"GLM 4.5", 352797829024},          {"GLM 4.5 Air", 106852251264},
      {"GLM 4.6", 352797829024},
  };
  for (const std::string& name : published_model_names()) {
    ASSERT_TRUE(published.contains(name)) << name;
    EXPECT_EQ(find_published_model(name)->num_parameters(), published.at(name)) << name;
  }
  EXPECT_EQ(published_model_names().size(), published.size());
}

std::int64_t f16_bytes_per_token(const char* name) {
  return KvLayout(find_published_model(name)->kv_layers).bytes_per_token();
}

TEST(PublishedModels, StoreTheirPublishedBytesPerToken) {
  EXPECT_EQ(f16_bytes_per_token("Llama 3 8B"), 131072);
  EXPECT_EQ(f16_bytes_per_token("Llama 3 70B"), 320 * 1024);
  EXPECT_EQ(f16_bytes_per_token("Llama 3.1 405B"), 504 * 1024);
  EXPECT_EQ(f16_bytes_per_token("Mistral 7B"), 128 * 1024);
  EXPECT_EQ(f16_bytes_per_token("SmolLM2 135M"), 23040);
  EXPECT_EQ(f16_bytes_per_token("Gemma 3 270M"), 18432);
  // 512 + 64 values of each of 61 layers, once.
  EXPECT_EQ(f16_bytes_per_token("DeepSeek V3"), 61 * (512 + 64) * 2);
}

TEST(PublishedModels, WouldStoreManyTimesThatWithAllHeads) {
  ModelShape mistral = *find_published_model("Mistral 7B");
  for (KvLayerShape& layer : mistral.kv_layers) layer.num_kv_heads = 32;
  EXPECT_EQ(KvLayout(mistral.kv_layers).bytes_per_token(), 512 * 1024);

  ModelShape llama = *find_published_model("Llama 3 70B");
  EXPECT_NEAR(static_cast<double>(kv_bytes_for(KvLayout(llama.kv_layers), 4096, 512)), 1.34e9,
              0.01e9);
  for (KvLayerShape& layer : llama.kv_layers) layer.num_kv_heads = 64;
  EXPECT_NEAR(static_cast<double>(kv_bytes_for(KvLayout(llama.kv_layers), 4096, 512)), 10.7e9,
              0.05e9);
}

TEST(PublishedModels, WindowsEndTheGrowth) {
  // gpt-oss: half of 24 layers hold 128 tokens and a chunk, in blocks that begin anywhere.
  const KvLayout layout(find_published_model("gpt-oss 20B")->kv_layers);
  const std::int64_t layer_bytes = 2 * 8 * 64 * 2;
  EXPECT_EQ(kv_bytes_for(layout, 100000, 64), 12 * layer_bytes * (100000 + 12 * 16 + 16));
  // Gemma 3: 5 of 6 layers.
  int num_full = 0;
  const ModelShape gemma = *find_published_model("Gemma 3 27B");
  for (const KvLayerShape& layer : gemma.kv_layers) num_full += layer.window == 0;
  EXPECT_EQ(num_full, 10);
  EXPECT_EQ(gemma.kv_layers[4].window, 1024);
  EXPECT_EQ(gemma.kv_layers[5].window, 0);
}

TEST(PublishedModels, TakeTheirPublishedBytes) {
  const auto gigabytes = [](const char* name) {
    return weights_bytes(*find_published_model(name), published_weight_format(name)) / 1e9;
  };
  EXPECT_NEAR(gigabytes("Llama 3 8B"), 16.06, 0.01);
  EXPECT_NEAR(gigabytes("Llama 3 70B"), 141.1, 0.1);
  EXPECT_NEAR(gigabytes("gpt-oss 20B"), 13.76, 0.05);   // the checkpoint: 12.8 GiB
  EXPECT_NEAR(gigabytes("gpt-oss 120B"), 65.25, 0.1);   // 60.8 GiB
  EXPECT_NEAR(gigabytes("DeepSeek V3"), 673, 1);
}

TEST(PublishedModels, ExpertsThatNoTokenChoosesAreNotRead) {
  const ModelShape shape = *find_published_model("Mixtral 8x7B");
  EXPECT_NEAR(static_cast<double>(shape.num_active_parameters()), 12.75e9, 0.02e9);
  EXPECT_DOUBLE_EQ(shape.expert_share(1), 0.25);
  EXPECT_GT(shape.expert_share(32), 0.99);
  EXPECT_NEAR(static_cast<double>(find_published_model("DeepSeek V3")->num_active_parameters()),
              36.6e9, 0.2e9);
}

TEST(PublishedModels, AreFoundHoweverTheyAreWritten) {
  EXPECT_EQ(find_published_model("llama-3.1-8b")->name, "Llama 3.1 8B");
  EXPECT_EQ(find_published_model("GPT_OSS_20B")->name, "gpt-oss 20B");
  EXPECT_FALSE(find_published_model("llama"));
  EXPECT_FALSE(find_published_model(""));
  const std::vector<std::string> similar = similar_model_names("qwen3-9b");
  EXPECT_NE(std::find(similar.begin(), similar.end(), "Qwen 3 8B"), similar.end());
  EXPECT_TRUE(similar_model_names("zzz").empty());
}

}  // namespace
}  // namespace larder
