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
  const KeySharing sharing = share_keys(layer(), sequences, kMuch);
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
  EXPECT_EQ(share_keys(layer(1024), in_window, kMuch).num_pieces, 2);

  auto with_sinks = sequences_of({{1, 131072}});
  with_sinks[0].window = 4096;
  with_sinks[0].num_sinks = 64;
  EXPECT_EQ(share_keys(layer(), with_sinks, kMuch).num_pieces, 8 + 1);
}

TEST(ShareKeys, NeitherDoBlocksBetweenSinksAndWindow) {
  auto sequences = sequences_of({{1, 1000000}, {3, 1000000}, {1, 200}, {1, 100}});
  for (AttentionSequence& sequence : sequences) {
    sequence.window = 100;
    sequence.num_sinks = 32;
  }
  share_keys(layer(), sequences, kMuch);
  const int skipped[] = {(999999 - 99) / 16 - 2, (999997 - 99) / 16 - 2, 100 / 16 - 2, 0};
  for (std::size_t i = 0; i < sequences.size(); ++i)
    EXPECT_EQ(sequences[i].skipped_blocks, skipped[i]) << i;
}

TEST(ShareKeys, AsFarAsTheScratchLasts) {
  auto sequences = sequences_of({{1, 16384}, {1, 16384}, {1, 16384}, {1, 4096}});
  const std::int64_t scratch_bytes = 80 * device_partial_size_bytes(32, 128);
  const KeySharing sharing = share_keys(layer(), sequences, scratch_bytes);
  const int splits[] = {32, 32, 1, 8};
  for (std::size_t i = 0; i < sequences.size(); ++i)
    EXPECT_EQ(sequences[i].num_splits, splits[i]) << i;
  EXPECT_EQ(sequences[3].first_partial, 64);
  EXPECT_EQ(sharing.num_merged_rows, 4);

  EXPECT_EQ(share_keys(layer(), sequences, 0).num_merged_rows, 0);
  EXPECT_EQ(sequences[0].num_splits, 1);
}

}  // namespace
}  // namespace larder
