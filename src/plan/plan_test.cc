#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace larder {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

KvLayout llama_3_8b() { return KvLayout(std::vector<KvLayerShape>(32, {8, 128, 0})); }

// 5 sliding layers of 512 tokens to each full one, as Gemma 3 270M has them.
KvLayout gemma_270m() {
  std::vector<KvLayerShape> shapes;
  for (int i = 0; i < 18; ++i) shapes.push_back({1, 256, i % 6 == 5 ? 0 : 512});
  return KvLayout(shapes);
}

TEST(Plan, Llama3_8bTakesItsPublishedBytesPerToken) {
  const KvLayout layout = llama_3_8b();
  EXPECT_EQ(layout.bytes_per_token(), 131072);
  EXPECT_EQ(layout.num_blocks_for(4096, 512) * layout.block_size_bytes(), 512 * kMiB);
}

TEST(Plan, ConcurrencyCountsWholeSequences) {
  const KvLayout layout = llama_3_8b();
  const Footprint footprint{
      .weights_bytes = 16 * kGiB, .context_length = 4096, .max_batch_tokens = 512};
  const Plan plan = make_plan(layout, footprint, {.memory_bytes = 80 * kGiB}, 80 * kGiB);
  EXPECT_EQ(plan.max_model_len, 4096);
  EXPECT_DOUBLE_EQ(plan.max_concurrency, 128);
  EXPECT_EQ(plan.kv_capacity_tokens, 128 * 4096);
  EXPECT_EQ(plan.total_bytes(), 80 * kGiB);
}

TEST(Plan, BookkeepingIsKeptFreeButNotTakenAtFirst) {
  const Footprint footprint{.weights_bytes = 16 * kGiB,
                            .bookkeeping_bytes = kGiB,
                            .context_length = 4096,
                            .max_batch_tokens = 512};
  const Plan plan = make_plan(llama_3_8b(), footprint, {.memory_bytes = 81 * kGiB}, 81 * kGiB);
  EXPECT_DOUBLE_EQ(plan.max_concurrency, 128);
  EXPECT_EQ(plan.total_bytes(), 80 * kGiB);
  EXPECT_EQ(plan.most_bytes(), 81 * kGiB);
  EXPECT_THROW(make_plan(llama_3_8b(), footprint, {.kv_bytes = 64 * kGiB}, 81 * kGiB - 1), Error);
}

// Beside each block of the large model's another model has an eighth of its bytes.
TEST(Plan, AModelThatGuessesCounts) {
  Footprint footprint{.weights_bytes = 15 * kGiB, .draft_bytes = kGiB, .context_length = 4096, .max_batch_tokens = 512};
  footprint.draft_kv_bytes = [](int num_blocks) { return num_blocks * (kMiB / 4); };
  const Plan plan = make_plan(llama_3_8b(), footprint, {.memory_bytes = 88 * kGiB}, 88 * kGiB);
  EXPECT_DOUBLE_EQ(plan.max_concurrency, 128);
  EXPECT_EQ(plan.draft_kv_bytes, 8 * kGiB);
  EXPECT_EQ(plan.draft_bytes(), 9 * kGiB);
  EXPECT_EQ(plan.total_bytes(), 88 * kGiB);
  try {
    make_plan(llama_3_8b(), footprint, {.kv_bytes = 64 * kGiB}, 88 * kGiB - 1);
    ADD_FAILURE() << "more than there is";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("draft model 9.00 GiB"));
  }
}

// It is gone before there are blocks.
TEST(Plan, MeasuringKeysNeedsRoomOnceAndNoMore) {
  const Footprint footprint{.weights_bytes = 16 * kGiB, .measuring_bytes = kGiB, .context_length = 4096, .max_batch_tokens = 512};
  const auto fewer = [&](const PlanOptions& options, std::int64_t available_bytes) {
    return make_plan(llama_3_8b(), footprint, options, available_bytes);
  };
  const Plan plan = fewer({.kv_bytes = 256 * kMiB}, 17 * kGiB);
  EXPECT_EQ(plan.total_bytes(), 16 * kGiB + 256 * kMiB);
  EXPECT_EQ(plan.most_bytes(), 17 * kGiB);
  EXPECT_EQ(fewer({.kv_bytes = 4 * kGiB}, 20 * kGiB).most_bytes(), 20 * kGiB);
  for (const PlanOptions& options : {PlanOptions{.kv_bytes = 256 * kMiB}, PlanOptions{.memory_bytes = 17 * kGiB - 1}}) {
    try {
      fewer(options, options.kv_bytes > 0 ? 17 * kGiB - 1 : 80 * kGiB);
      ADD_FAILURE() << "more than there is";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("give 17408MiB, or take --kv-type f16"));
    }
  }
}

TEST(Plan, SlidingLayersHoldTheirWindowAndAChunk) {
  const KvLayout layout = gemma_270m();
  ASSERT_EQ(layout.num_groups(), 6);
  // Short: every group holds all of it. Long: five groups stop at (512 + 512) / 16 + 1 blocks.
  EXPECT_EQ(layout.num_blocks_for(160, 512), 6 * 10);
  EXPECT_EQ(layout.num_blocks_for(32768, 512), 2048 + 5 * 65);
}

TEST(Plan, AContextThatDoesNotFitIsCutUnlessItWasAskedFor) {
  const KvLayout layout = llama_3_8b();
  const Footprint footprint{.context_length = 131072, .max_batch_tokens = 512};
  const Plan plan = make_plan(layout, footprint, {.kv_bytes = kGiB}, 8 * kGiB);
  EXPECT_EQ(plan.max_model_len, 8192);
  EXPECT_DOUBLE_EQ(plan.max_concurrency, 1);
  EXPECT_THROW(make_plan(layout, footprint, {.kv_bytes = kGiB, .max_model_len = 8193}, 8 * kGiB),
               Error);
}

std::string word_after(const std::string& text, const std::string& option) {
  const std::size_t begin = text.rfind(option + " ") + option.size() + 1;
  return text.substr(begin, text.find_first_of(" ,", begin) - begin);
}

TEST(Plan, TheSizesThatItAdvisesSuffice) {
  const KvLayout layout = gemma_270m();
  const Footprint footprint{.weights_bytes = 123'456'789,
                            .context_length = 32768,
                            .max_batch_tokens = 512,
                            .beside_blocks = [](int num_blocks) -> KvBookkeeping {
                              return {num_blocks * 100'000, num_blocks * 50'000 + 1};
                            }};
  std::string text;
  try {
    (void)make_plan(layout, footprint, {.kv_bytes = kMiB, .max_model_len = 20'000}, 8 * kGiB);
    FAIL();
  } catch (const Error& error) {
    text = error.what();
  }
  const std::int64_t kv_bytes = parse_bytes("x", word_after(text, "--kv-size"));
  const std::int64_t memory_bytes = parse_bytes("x", word_after(text, "--memory"));
  EXPECT_EQ(make_plan(layout, footprint, {.kv_bytes = kv_bytes, .max_model_len = 20'000}, 8 * kGiB)
                .max_model_len, 20'000);
  const Plan plan = make_plan(
      layout, footprint, {.memory_bytes = memory_bytes, .max_model_len = 20'000}, 8 * kGiB);
  EXPECT_EQ(plan.max_model_len, 20'000);
  EXPECT_LE(plan.most_bytes(), memory_bytes);
  EXPECT_GT(plan.most_bytes() + 3 * kMiB, memory_bytes);
}

TEST(Plan, WhereNoLengthIsAskedForTheFewestTokensThatAreServedAreTold) {
  const Footprint footprint{.context_length = 32768, .max_batch_tokens = 512};
  std::string text;
  try {
    (void)make_plan(gemma_270m(), footprint, {.kv_bytes = 1024}, 8 * kGiB);
    FAIL();
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(text.find("1 KiB of KV hold 0 tokens at most, and a server needs 32:"), 0U) << text;
  const std::int64_t kv_bytes = parse_bytes("x", word_after(text, "--kv-size"));
  EXPECT_GE(make_plan(gemma_270m(), footprint, {.kv_bytes = kv_bytes}, 8 * kGiB).max_model_len, 32);
  EXPECT_LT(kv_bytes, 2 * kMiB);
}

TEST(Plan, SaysWhatTakesTheMemoryThatWasGiven) {
  const Footprint footprint{.weights_bytes = 200 * kMiB, .context_length = 32768, .max_batch_tokens = 512};
  std::string text;
  try {
    (void)make_plan(gemma_270m(), footprint, {.memory_bytes = 100 * kMiB}, 8 * kGiB);
    FAIL();
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_EQ(text.find("--memory 100 MiB: weights 200 MiB, scratch "), 0U) << text;
  EXPECT_NE(text.find(" leave room for 0 tokens, and a server needs 32: give --memory "), std::string::npos) << text;
  const std::int64_t memory_bytes = parse_bytes("x", word_after(text, "give --memory"));
  EXPECT_GE(make_plan(gemma_270m(), footprint, {.memory_bytes = memory_bytes}, 8 * kGiB).max_model_len, 32);
}

TEST(Plan, RefusesWhatTheMachineHasNot) {
  const Footprint footprint{
      .weights_bytes = 4 * kGiB, .context_length = 4096, .max_batch_tokens = 512};
  EXPECT_THROW(make_plan(llama_3_8b(), footprint, {.kv_bytes = 5 * kGiB}, 8 * kGiB), Error);
  EXPECT_THROW(make_plan(llama_3_8b(), footprint, {}, 4 * kGiB), Error);
  // Less than the weights alone: nothing is left for KV.
  EXPECT_THROW(make_plan(llama_3_8b(), footprint, {.memory_bytes = kGiB}, 8 * kGiB), Error);
}

TEST(Plan, AdvisesTheOptionThatWasGiven) {
  const auto refusal = [](const PlanOptions& options, std::int64_t available_bytes) -> std::string {
    const Footprint footprint{
        .weights_bytes = 4 * kGiB,
        .context_length = 4096,
        .max_batch_tokens = 512,
        .beside_blocks = [](int num_blocks) -> KvBookkeeping { return {num_blocks * 4 * kMiB, 0}; }};
    try {
      (void)make_plan(llama_3_8b(), footprint, options, available_bytes);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  using testing::EndsWith;
  EXPECT_THAT(refusal({.kv_bytes = 5 * kGiB}, 8 * kGiB),
              EndsWith(": take a smaller --kv-size or a smaller model"));
  EXPECT_THAT(refusal({.memory_bytes = 9 * kGiB}, 8 * kGiB),
              EndsWith(": take a smaller --memory or a smaller model"));
  // No size would do.
  for (const PlanOptions& options : {PlanOptions{.kv_bytes = kGiB}, {.memory_bytes = 9 * kGiB}, {}})
    EXPECT_THAT(refusal(options, 3 * kGiB), EndsWith(": take a smaller model"));
  // The model is not to blame where a limit holds most of the machine's memory back.
  EXPECT_THAT(refusal({.kv_bytes = kGiB, .memory_bound = "`ulimit -v`"}, 3 * kGiB),
              EndsWith(" and 3.00 GiB are available under `ulimit -v`: take a smaller model, or raise that limit"));
}

TEST(Plan, AdvisesASmallerDiskWhereItsIndexIsWhatIsTooLarge) {
  const auto refusal = [](std::int64_t weights_bytes, const PlanOptions& options) -> std::string {
    const Footprint footprint{.weights_bytes = weights_bytes,
                              .process_bytes = 5 * kGiB,
                              .disk_index_bytes = 4 * kGiB,
                              .context_length = 4096,
                              .max_batch_tokens = 512};
    try {
      (void)make_plan(llama_3_8b(), footprint, options, 8 * kGiB);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  using testing::EndsWith;
  for (const PlanOptions& options : {PlanOptions{}, {.kv_bytes = kGiB}})
    EXPECT_THAT(refusal(4 * kGiB, options), EndsWith(" available: take a smaller --kv-disk-size"));
  EXPECT_THAT(refusal(2 * kGiB, {.kv_bytes = 2 * kGiB}), EndsWith(": take a smaller --kv-size or a smaller model"));
  EXPECT_THAT(refusal(8 * kGiB, {}), EndsWith(": take a smaller model"));
}

TEST(Memory, SizesAreReadAndWritten) {
  EXPECT_EQ(parse_bytes("x", "4096"), 4096);
  EXPECT_EQ(parse_bytes("x", "2GiB"), 2 * kGiB);
  EXPECT_EQ(parse_bytes("x", "1.5 g"), 3 * kGiB / 2);
  EXPECT_EQ(parse_bytes("x", "512MB"), 512 * kMiB);
  for (const char* bad : {"", "x", "-1", "1q", "1gx", "1e30", "nan"})
    EXPECT_THROW(parse_bytes("x", bad), Error) << bad;
  try {
    parse_bytes("--kv-size", "lots");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "--kv-size lots: not a size; write 512MiB, 2G or a number of bytes");
  }
  EXPECT_EQ(format_bytes(3 * kGiB / 2), "1.50 GiB");
  EXPECT_EQ(option_bytes(160 * kMiB + 1), "161MiB");
}

TEST(Memory, TheMachineAnswers) {
  EXPECT_GT(available_memory_bytes(), 0);
  EXPECT_GT(resident_memory_bytes(), 0);
}

}  // namespace
}  // namespace larder
