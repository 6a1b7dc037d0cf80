// Folders as Hugging Face keeps models: what transformers and tokenizers make of the same ones, see
// tests/golden/model/make_hf.py.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/files/model_files.h"
#include "model/forward/exactness.h"
#include "model/forward/golden.h"
#include "model/vocabulary.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {
namespace {

using nlohmann::json;

const std::string kGolden = LARDER_SOURCE_DIR "/tests/golden/model/";

class TinyFolder : public ::testing::TestWithParam<const char*> {
 protected:
  const ModelFiles files_{kGolden + GetParam()};
  const json json_ = read_json(kGolden + GetParam() + ".json");

  void expect_what_transformers_computes() const {
    const TestModel model(files_.gguf());
    for (const Isa isa : kCpuIsas) {
      const KernelTable* kernels = kernels_for(isa);
      if (!kernels) continue;
      TestRunner runner(model, *kernels, 2,
                        {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 128,
                         .activations = ActivationType::kF32},
                        blocks_for(model, 128, 1));
      expect_reference(runner, json_, kernels->name);
    }
  }
};

TEST_P(TinyFolder, ComputesWhatTransformersDoes) { expect_what_transformers_computes(); }

TEST_P(TinyFolder, RowsDoNotDependOnTheirCompany) {
  expect_exact(TestModel(files_.gguf()), select_kernels(), 97, ActivationType::kInt8);
}

TEST_P(TinyFolder, TokensAreTheTokenizersLibrarys) {
  const Tokenizer tokenizer(read_vocabulary(files_.gguf()));
  ASSERT_GT(json_.at("texts").size(), 100u);
  for (const auto& row : json_.at("texts"))
    EXPECT_EQ(tokenizer.encode(row[0].get<std::string>(), true, true), row[1].get<std::vector<TokenId>>())
        << row[0].dump(-1, ' ', true);
}

TEST_P(TinyFolder, HasItsTemplateAndItsName) {
  const std::string source = read_chat_template(files_.gguf());
  TemplateInput input;
  input.messages.push_back({.json = {{"role", "user"}, {"content", "Hello"}}});
  input.bos_token = "<bos>";
  EXPECT_EQ(ChatTemplate(source).render(input).text, "<bos><|user|>Hello<|end|><|assistant|>");
  EXPECT_EQ(read_model_config(files_.gguf()).name, GetParam());
}

// Folders of the smaller families, whose tokenizer is that of tiny_hf_llama.
class TinyFamily : public TinyFolder {};

TEST_P(TinyFamily, ComputesWhatTransformersDoes) { expect_what_transformers_computes(); }

INSTANTIATE_TEST_SUITE_P(Models, TinyFamily,
                         ::testing::Values("tiny_hf_smollm3", "tiny_hf_granite", "tiny_hf_mistral3", "tiny_hf_olmo2",
                                           "tiny_hf_olmo3", "tiny_hf_exaone4", "tiny_hf_seed_oss", "tiny_hf_ernie4_5",
                                           "tiny_hf_glm4", "tiny_hf_gemma3_images", "tiny_hf_qwen2moe", "tiny_hf_glm4moe", "tiny_hf_gemma2"));

INSTANTIATE_TEST_SUITE_P(Models, TinyFolder,
                         ::testing::Values("tiny_hf_llama", "tiny_hf_gemma3", "tiny_hf_qwen3moe", "tiny_hf_phi3", "tiny_hf_gpt_oss"));

}  // namespace
}  // namespace larder
