// Which sequences of a batch share out their keys over a device's blocks.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/ops.h"

namespace larder {
namespace {

constexpr std::int64_t kMuch = 128 << 20;

// 32 heads, 8 of keys and values, of 128.
AttentionArgs layer(int window = 0) {
  AttentionArgs args;
  args.kv.num_kv_heads = 8;
  args.kv.head_dim = 128;
  args.num_heads = 32;
  args.window = window;
  return args;
}

std::vector<AttentionSequence> sequences_of(
    const std::vector<std::pair<int, int>>& tokens_and_contexts) {
  std::vector<AttentionSequence> sequences;
  int row = 0;
  for (const auto& [num_tokens, context_len] : tokens_and_contexts) {
    sequences.push_back({.first_row = row, .num_tokens = num_tokens, .context_len = context_len});
    row += num_tokens;
  }
  return sequences;
}

TEST(ShareKeys, NoSequenceDependsOnItsCompany) {
  auto sequences = sequences_of({{1, 131072}, {1, 1000}, {1, 300}, {2, 1024}, {512, 8192}});
  const KeySharing sharing = share_keys(layer(), sequences, {}, kMuch);
  const int splits[] = {256, 2, 1, 2, 1};
  const int pieces[] = {0, 256, 258, 259, 261};
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_EQ(sequences[i].num_splits, splits[i]) << i;
    EXPECT_EQ(sequences[i].first_piece, pieces[i]) << i;
  }
  EXPECT_EQ(sequences[1].first_partial, 256);
  EXPECT_EQ(sequences[3].first_partial, 258);
  EXPECT_EQ(sharing.num_pieces, 261 + 512 * 4 / kDeviceTileRows);
  EXPECT_EQ(sharing.most_tiles, 512 * 4 / kDeviceTileRows);
  EXPECT_EQ(sharing.num_merged_rows, 5);
}

TEST(ShareKeys, SplitsThatNoQuerySeesTakeNoRoom) {
  auto in_window = sequences_of({{1, 131072}});
  EXPECT_EQ(share_keys(layer(1024), in_window, {}, kMuch).num_pieces, 2);

  auto with_sinks = sequences_of({{1, 131072}});
  with_sinks[0].window = 4096;
  with_sinks[0].num_sinks = 64;
  EXPECT_EQ(share_keys(layer(), with_sinks, {}, kMuch).num_pieces, 8 + 1);
}

TEST(ShareKeys, NeitherDoBlocksBetweenSinksAndWindow) {
  auto sequences = sequences_of({{1, 1000000}, {3, 1000000}, {1, 200}, {1, 100}});
  for (AttentionSequence& sequence : sequences) {
    sequence.window = 100;
    sequence.num_sinks = 32;
  }
  share_keys(layer(), sequences, {}, kMuch);
  const int skipped[] = {(999999 - 99) / 16 - 2, (999997 - 99) / 16 - 2, 100 / 16 - 2, 0};
  for (std::size_t i = 0; i < sequences.size(); ++i)
    EXPECT_EQ(sequences[i].skipped_blocks, skipped[i]) << i;
}

TEST(ShareKeys, AsFarAsTheScratchLasts) {
  auto sequences = sequences_of({{1, 16384}, {1, 16384}, {1, 16384}, {1, 4096}});
  const std::int64_t scratch_bytes = 80 * device_partial_size_bytes(32, 128);
  const KeySharing sharing = share_keys(layer(), sequences, {}, scratch_bytes);
  const int splits[] = {32, 32, 1, 8};
  for (std::size_t i = 0; i < sequences.size(); ++i)
    EXPECT_EQ(sequences[i].num_splits, splits[i]) << i;
  EXPECT_EQ(sequences[3].first_partial, 64);
  EXPECT_EQ(sharing.num_merged_rows, 4);

  EXPECT_EQ(share_keys(layer(), sequences, {}, 0).num_merged_rows, 0);
  EXPECT_EQ(sequences[0].num_splits, 1);
}

// Keys that sequences have in common.
class ShareCommonKeys : public ::testing::Test {
 protected:
  // Decoding behind so many tokens each, of which the first num_common lie in the same blocks.
  std::vector<AttentionSequence> decoding(const std::vector<int>& contexts, int num_common) {
    int next = 1000;
    tables_.clear();
    for (const int context : contexts) {
      std::vector<BlockId>& table = tables_.emplace_back();
      for (int block = 0; block * kBlockSize < context; ++block)
        table.push_back(BlockId{(block + 1) * kBlockSize <= num_common ? block : next++});
    }
    std::vector<std::pair<int, int>> tokens_and_contexts;
    for (const int context : contexts) tokens_and_contexts.emplace_back(1, context);
    std::vector<AttentionSequence> sequences = sequences_of(tokens_and_contexts);
    for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i].block_table = tables_[i].data();
    return sequences;
  }
  KeySharing share(const AttentionArgs& args, std::vector<AttentionSequence>& sequences) {
    return share_keys(args, sequences, finder_.find(sequences, device_common_rule(args)), kMuch);
  }
  // Of the tile that a sequence has.
  static std::vector<int> members(const std::vector<AttentionSequence>& sequences, std::size_t of) {
    std::vector<int> members;
    for (int m = 0; m < sequences[of].num_members; ++m)
      members.push_back(sequences[static_cast<std::size_t>(sequences[of].first_member + m)].listed);
    return members;
  }

 private:
  CommonKeyFinder finder_;
  std::vector<std::vector<BlockId>> tables_;
};

TEST_F(ShareCommonKeys, ATileHasAsManySequencesAsItHoldsRows) {
  auto sequences = decoding({2100, 2101, 2102, 2103, 2104, 2105, 2106}, 2000);
  const KeySharing sharing = share(layer(), sequences);
  EXPECT_EQ(members(sequences, 0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(members(sequences, 4), (std::vector<int>{4, 5, 6}));
  // 3 of 5 splits in each of two tiles, two of each sequence's own.
  EXPECT_EQ(sharing.num_pieces, 2 * 3 + 7 * 2);
  const int pieces[] = {0, 5, 7, 9, 11, 16, 18};
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_EQ(sequences[i].first_piece, pieces[i]) << i;
    EXPECT_EQ(sequences[i].first_split, i % 4 == 0 ? 0 : 3) << i;
    EXPECT_EQ(sequences[i].num_common, 1536) << i;
    EXPECT_EQ(sequences[i].num_splits, 5) << i;
  }
}

TEST_F(ShareCommonKeys, OneThatIsLeftOverGoesAlone) {
  auto sequences = decoding({2100, 2100, 2100, 2100, 2100}, 2000);
  EXPECT_EQ(share(layer(), sequences).num_pieces, 3 + 4 * 2 + 5);
  EXPECT_EQ(sequences[4].num_members, 0);
  EXPECT_EQ(sequences[4].first_split, 0);
}

TEST_F(ShareCommonKeys, NotWhereItSavesNothing) {
  auto brief = decoding({900, 900}, 500);
  EXPECT_EQ(share(layer(), brief).num_pieces, 4);
  auto past_window = decoding({2100, 2100}, 2000);
  EXPECT_EQ(share(layer(2000), past_window).num_pieces, 10);
  EXPECT_EQ(past_window[1].first_split, 0);
  auto within_window = decoding({2100, 2100}, 2000);
  EXPECT_EQ(share(layer(2100), within_window).num_pieces, 3 + 4);
  AttentionArgs one_kv_head = layer();
  one_kv_head.kv.num_kv_heads = 2;  // a sequence fills a tile
  auto wide = decoding({2100, 2100}, 2000);
  EXPECT_EQ(share(one_kv_head, wide).num_pieces, 10);
}

}  // namespace
}  // namespace larder
