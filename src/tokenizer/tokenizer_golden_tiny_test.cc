// Small vocabularies, one per way of encoding, against the reference implementations.
#include "tokenizer/golden_replay.h"

namespace larder {
namespace {

class TinyVocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyVocabulary, EncodesAndDecodesAsTheReferenceDoes) {
  const auto golden = testing::read_golden(GetParam());
  const Tokenizer tokenizer(testing::read_golden_vocabulary(golden));
  testing::replay_golden(tokenizer, golden);
}

INSTANTIATE_TEST_SUITE_P(Golden, TinyVocabulary,
                         ::testing::Values("gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "gpt-4o", "tekken", "default",
                                           "sp-bytes", "sp-prefix", "sp-unknown"));

}  // namespace
}  // namespace larder
