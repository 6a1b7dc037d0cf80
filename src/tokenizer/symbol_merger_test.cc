#include "tokenizer/symbol_merger.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

namespace larder {
namespace {

using Row = std::vector<std::pair<TokenId, std::uint32_t>>;  // id and end

std::vector<Symbol> make_symbols(const std::vector<TokenId>& ids) {
  std::vector<Symbol> symbols;
  for (const TokenId id : ids) {
    const auto at = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({at, at + 1, id});
  }
  return symbols;
}

// A number for every pair, as if drawn by lot: a tenth of the pairs and of what they make may
// merge.
Merge merge_of(std::uint32_t table, const Symbol& left, const Symbol& right) {
  std::uint32_t hash = table * 7919 + static_cast<std::uint32_t>(left.id) * 31 +
                       static_cast<std::uint32_t>(right.id);
  hash = (hash ^ hash >> 15) * 0x2C1B3C6Du;
  hash ^= hash >> 12;
  if (hash % 3 != 0 || right.end - left.begin > 32) return {};
  return {hash >> 8 & 15, static_cast<TokenId>(hash >> 16 & 15)};
}

template <class Lookup>
Row merge(const std::vector<TokenId>& ids, Lookup lookup, std::uint32_t chunk_size) {
  std::vector<Symbol> symbols = make_symbols(ids);
  std::vector<std::uint64_t> queue;
  merge_symbols(symbols, queue, lookup, chunk_size);
  Row row;
  for (std::uint32_t i = 0; i != Symbol::kNone; i = symbols[i].next)
    row.emplace_back(symbols[i].id, symbols[i].end);
  return row;
}

// The definition: the best pair of all, the leftmost of equals, again and again.
template <class Lookup>
Row merge_by_definition(const std::vector<TokenId>& ids, Lookup lookup) {
  std::vector<Symbol> symbols = make_symbols(ids);
  for (Symbol& symbol : symbols) symbol.id = symbol.initial;
  while (true) {
    std::size_t best = 0;
    Merge found;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge here = lookup(symbols[i], symbols[i + 1]);
      if (here.priority < found.priority) found = here, best = i;
    }
    if (found.priority == Merge::kNever) break;
    symbols[best].id = found.result;
    symbols[best].end = symbols[best + 1].end;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Row row;
  for (const Symbol& symbol : symbols) row.emplace_back(symbol.id, symbol.end);
  return row;
}

template <class Lookup>
std::size_t expect_definition(const std::vector<TokenId>& ids, Lookup lookup) {
  const Row expected = merge_by_definition(ids, lookup);
  for (const std::uint32_t chunk_size : {1u, 3u, 8u, 33u, 101u, 1000u})
    EXPECT_EQ(merge(ids, lookup, chunk_size), expected) << "in chunks of " << chunk_size;
  return ids.size() - expected.size();
}

TEST(SymbolMerger, FollowsTheDefinitionWholeAndInChunks) {
  std::mt19937 random(1);
  std::size_t num_merged = 0;
  for (std::uint32_t table = 0; table < 300; ++table) {
    std::vector<TokenId> ids(1 + random() % 200);
    const std::uint32_t alphabet = 1 + random() % 6;
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % alphabet);
    num_merged += expect_definition(ids, [table](const Symbol& left, const Symbol& right) {
      return merge_of(table, left, right);
    });
  }
  EXPECT_GT(num_merged, 5000u);
}

// Pairs of equals: which are the pairs depends on how far away the row began.
TEST(SymbolMerger, SettlesSeamsWhoseEffectReachesRight) {
  const std::vector<TokenId> ids(700, 0);
  const auto lookup = [](const Symbol& left, const Symbol& right) {
    return left.id == 0 && right.id == 0 ? Merge{0, 1} : Merge{};
  };
  EXPECT_EQ(expect_definition(ids, lookup), 350u);
}

// The last pair goes first, then the last before it: what the pairs are depends on how far away the
// stretch ends.
TEST(SymbolMerger, SettlesSeamsWhoseEffectReachesLeft) {
  constexpr TokenId kStretch = 61;
  std::vector<TokenId> ids;
  for (TokenId i = 0; i < 700; ++i) ids.push_back(i % kStretch);
  const auto lookup = [](const Symbol& left, const Symbol& right) {
    if (left.id >= kStretch || right.id != left.id + 1) return Merge{};
    return Merge{static_cast<std::uint32_t>(kStretch - left.id), kStretch + left.id};
  };
  EXPECT_GT(expect_definition(ids, lookup), 300u);
}

}  // namespace
}  // namespace larder
