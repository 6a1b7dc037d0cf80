// Published vocabularies, read from their model files, against the reference implementations.
#include <cstdlib>

#include "base/mapped_file.h"
#include "model/gguf.h"
#include "model/vocabulary.h"
#include "tokenizer/golden_replay.h"

namespace larder {
namespace {

void replay(const char* variable, const char* golden) {
  const char* path = std::getenv(variable);
  if (!path) GTEST_SKIP() << variable << " is not set";
  const MappedFile file(path);
  const GgufFile gguf(file.bytes());
  const Tokenizer tokenizer(read_vocabulary(gguf));
  testing::replay_golden(tokenizer, testing::read_golden(golden));
}

TEST(TokenizerGolden, SmolLm2) { replay("LARDER_TEST_SMOLLM2", "smollm2"); }

TEST(TokenizerGolden, Gemma3) { replay("LARDER_TEST_GEMMA3", "gemma3"); }

}  // namespace
}  // namespace larder
