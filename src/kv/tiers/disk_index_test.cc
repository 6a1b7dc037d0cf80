#include "kv/tiers/disk_index.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/heap_test_support.h"
#include "kv/tiers/disk_segment.h"
#include "kv/tiers/tier_record.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

BlockKey key(std::uint64_t value) { return {test_digest(value), 0}; }

// An index of one segment, whose blocks go by numbers.
struct Index {
  explicit Index(std::int32_t num_slots) { index.add_segment(num_slots); }

  SlotId store(std::uint64_t block, std::uint64_t parent) {
    const SlotId id = *index.take_free();
    EXPECT_TRUE(index.store(id, key(block), key(parent), age++));
    return id;
  }
  // Which block goes next; nullopt = none.
  std::optional<SlotId> evict() {
    const auto id = index.evict();
    if (id) index.release(*id);
    return id;
  }

  DiskIndex index;
  std::uint64_t age = 1;
};

TEST(DiskIndex, GivesSlotsInOrderAndReleasedOnesAgain) {
  Index test(3);
  const SlotId first = test.store(1, 100);
  EXPECT_EQ(first, (SlotId{0, 0}));
  EXPECT_EQ(test.store(2, 100), (SlotId{0, 1}));
  EXPECT_EQ(test.store(3, 100), (SlotId{0, 2}));
  EXPECT_FALSE(test.index.take_free());
  test.index.release(first);
  EXPECT_FALSE(test.index.find(key(1)));
  EXPECT_EQ(test.index.take_free(), first);
  test.index.lose(first);
  EXPECT_FALSE(test.index.take_free());
  EXPECT_EQ(test.index.add_segment(1), 1);
  EXPECT_EQ(test.index.take_free(), (SlotId{1, 0}));
}

// Whoever adds them holds a lock that the engine waits for.
TEST(DiskIndex, SlotsAreMadeBeforeTheyAreAdded) {
  if (!is_heap_known()) GTEST_SKIP() << "the heap's size is not known";
  DiskIndex index;
  const std::int64_t before = heap_in_use();
  DiskIndex::Slots slots = DiskIndex::make_slots(1'000'000);
  const std::int64_t made = heap_in_use();
  EXPECT_GT(made - before, 10'000'000);
  index.add_segment(std::move(slots));
  EXPECT_LT(heap_in_use() - made, 10'000);
  EXPECT_EQ(index.take_free(), (SlotId{0, 0}));
}

// 1 <- 2 <- 3, and 4 alone; stored in an order that is not that of use.
TEST(DiskIndex, EvictsTheLeastRecentlyUsedThatNobodyFollows) {
  Index test(8);
  const SlotId three = test.store(3, 2);
  const SlotId one = test.store(1, 100);
  const SlotId two = test.store(2, 1);
  const SlotId four = test.store(4, 100);
  test.index.touch(three, test.age++);
  EXPECT_EQ(test.evict(), four);
  EXPECT_EQ(test.evict(), three);
  EXPECT_EQ(test.evict(), two);
  EXPECT_EQ(test.evict(), one);
  EXPECT_EQ(test.evict(), std::nullopt);
  EXPECT_EQ(test.index.num_stored(), 0);
}

TEST(DiskIndex, WhatIsPutBackHasItsTurnAgain) {
  Index test(8);
  const SlotId one = test.store(1, 100);
  const SlotId two = test.store(2, 1);
  const SlotId three = test.store(3, 100);
  ASSERT_EQ(test.index.evict(), two);
  ASSERT_EQ(test.index.evict(), one);
  EXPECT_TRUE(test.index.put_back(one));
  EXPECT_TRUE(test.index.put_back(two));
  EXPECT_TRUE(test.index.holds(one, key(1)));
  EXPECT_TRUE(test.index.holds(two, key(2)));
  for (const SlotId id : {two, one, three}) EXPECT_EQ(test.index.evict(), id);
  // Stored elsewhere meanwhile.
  test.store(1, 100);
  EXPECT_FALSE(test.index.put_back(one));
  EXPECT_TRUE(test.index.put_back(two));
}

TEST(DiskIndex, WhatIsPinnedStays) {
  Index test(4);
  const SlotId one = test.store(1, 100);
  const SlotId two = test.store(2, 100);
  test.index.pin(one);
  EXPECT_EQ(test.evict(), two);
  EXPECT_EQ(test.evict(), std::nullopt);
  test.index.unpin(one);
  EXPECT_EQ(test.evict(), one);
}

// Only a directory that someone made up has this. Nothing goes, nothing hangs.
TEST(DiskIndex, SurvivesBlocksThatFollowEachOther) {
  Index test(4);
  test.store(1, 2);
  test.store(2, 1);
  const SlotId self = test.store(3, 3);
  EXPECT_EQ(test.evict(), self);
  EXPECT_EQ(test.evict(), std::nullopt);
}

TEST(DiskIndex, WhatOtherGroupsHaveOfTheSameTokensGoesNext) {
  DiskIndex index;
  index.add_segment(12);
  index.note_group(2);
  const auto in = [](std::uint64_t block, int group) { return BlockKey(test_digest(block), group); };
  std::uint64_t age = 1;
  for (std::uint64_t block = 1; block <= 4; ++block) {
    for (int group = 0; group < 3; ++group)
      ASSERT_TRUE(index.store(*index.take_free(), in(block, group), in(block - 1, group), age++));
  }
  index.pin(*index.find(in(3, 2)));
  std::vector<std::uint64_t> evicted;
  for (int i = 0; i < 5; ++i) {
    const std::optional<SlotId> slot = index.evict();
    ASSERT_TRUE(slot);
    evicted.push_back(static_cast<std::uint64_t>(slot->slot) / 3 + 1);
  }
  EXPECT_EQ(evicted, (std::vector<std::uint64_t>{4, 4, 4, 3, 3}));
  EXPECT_TRUE(index.find(in(3, 2)));
  // Not where that block is back.
  index.unpin(*index.find(in(3, 2)));
  const std::optional<SlotId> other = index.evict();
  ASSERT_TRUE(other);
  for (const int group : {0, 1}) {
    const BlockKey last(test_digest(2), group);
    ASSERT_TRUE(index.find(last));
    index.touch(*index.find(last), age++);
  }
  const std::optional<SlotId> evicted_last = index.evict();
  ASSERT_TRUE(evicted_last);
  EXPECT_FALSE(index.find(in(2, 2)));
  ASSERT_TRUE(index.store(*evicted_last, in(2, 2), in(1, 2), age++));
  EXPECT_EQ(index.next_to_go(), index.find(in(2, 0)));
  index.touch(*index.find(in(2, 0)), age++);
  EXPECT_EQ(index.next_to_go(), index.find(in(2, 1)));
  index.touch(*index.find(in(2, 1)), age++);
  EXPECT_EQ(index.next_to_go(), index.find(in(2, 2)));
}

TEST(DiskIndex, SamplesAllOverTheStore) {
  Index test(900);
  test.index.add_segment(100);
  for (std::uint64_t block = 1; block <= 1000; ++block) test.store(block, 5000);
  const std::vector<SlotId> sample = test.index.sample_stored(10);
  ASSERT_EQ(sample.size(), 10u);
  EXPECT_EQ(sample.front(), (SlotId{0, 0}));
  EXPECT_EQ(sample.back(), (SlotId{1, 0}));
  EXPECT_EQ(test.index.sample_stored(5000).size(), 1000u);
}

// Against a list that is searched from the front.
TEST(DiskIndex, KeepsToItsRulesWhateverHappens) {
  struct Stored {
    std::uint64_t block;
    SlotId id;
    std::uint64_t age;
  };
  constexpr std::uint64_t kNumBlocks = 60;
  const auto parent_of = [](std::uint64_t block) { return block / 2 + (block < 2 ? 1000 : 0); };
  std::mt19937 random(3);
  Index test(30);
  std::vector<Stored> model;
  const auto has = [&](std::uint64_t block) {
    return std::any_of(model.begin(), model.end(),
                       [&](const Stored& s) { return s.block == block; });
  };
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t block = random() % kNumBlocks;
    const unsigned action = random() % 10;
    if (action < 6) {
      if (const auto id = test.index.find(key(block))) {
        ASSERT_TRUE(has(block));
        test.index.touch(*id, test.age);
        for (Stored& stored : model)
          if (stored.block == block) stored.age = test.age;
        ++test.age;
      } else if (model.size() < 30) {
        ASSERT_FALSE(has(block));
        const std::uint64_t age = test.age;
        model.push_back({block, test.store(block, parent_of(block)), age});
      }
    } else if (action < 9) {
      auto oldest = model.end();
      for (auto s = model.begin(); s != model.end(); ++s) {
        const bool followed = std::any_of(model.begin(), model.end(), [&](const Stored& other) {
          return other.block != s->block && parent_of(other.block) == s->block;
        });
        if (!followed && (oldest == model.end() || s->age < oldest->age)) oldest = s;
      }
      const auto evicted = test.evict();
      ASSERT_EQ(evicted.has_value(), oldest != model.end());
      if (!evicted) continue;
      ASSERT_EQ(*evicted, oldest->id);
      model.erase(oldest);
    } else if (!model.empty()) {
      const std::size_t which = random() % model.size();
      test.index.release(model[which].id);
      model.erase(model.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ASSERT_EQ(test.index.num_stored(), static_cast<std::int64_t>(model.size()));
  }
}

TEST(TierRecord, ChangesWithEveryField) {
  const TierFormat format = test_format(100);
  const TierBlock block = test_block(1, 1, 2);
  const auto bytes = test_bytes(block, 100);
  const RecordHeader header = encode_record(make_record(format, block, bytes));
  const auto record = decode_record(header);
  ASSERT_TRUE(record);
  EXPECT_TRUE(is_record_of(*record, format, block));
  EXPECT_EQ(record->payload_hash, hash_payload(bytes));
  for (std::size_t i = 0; i < header.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      RecordHeader flipped = header;
      flipped[i] ^= static_cast<std::byte>(1 << bit);
      ASSERT_FALSE(decode_record(flipped)) << i;
    }
  }
  EXPECT_FALSE(decode_record(std::span(header).first(255)));
  EXPECT_FALSE(is_record_of(*record, test_format(101), block));
  EXPECT_FALSE(is_record_of(*record, test_format(100, 2), block));
  EXPECT_FALSE(is_record_of(*record, format, test_block(1, 1, 1)));
  EXPECT_FALSE(is_record_of(*record, format, test_block(1, 2, 2)));
}

// `header` with another number at an offset, and right in itself: hash_at is where its XXH3-64 lies.
template <class Number, std::size_t kSize>
std::array<std::byte, kSize> with_number(std::array<std::byte, kSize> header, std::size_t offset,
                                         int number, std::size_t hash_at) {
  const auto value = static_cast<Number>(number);
  std::memcpy(&header[offset], &value, sizeof value);
  const std::uint64_t hash = XXH3_64bits(header.data(), hash_at);
  std::memcpy(&header[hash_at], &hash, sizeof hash);
  return header;
}

// Fault 38: headers that another version of the format wrote.
TEST(TierRecord, OtherVersionsAreNotRead) {
  const TierBlock block = test_block(1, 1);
  const RecordHeader header =
      encode_record(make_record(test_format(100), block, test_bytes(block, 100)));
  const auto with_version = [&](int version) {
    return with_number<std::uint16_t>(header, 4, version, 248);
  };
  EXPECT_EQ(with_version(kRecordVersion), header);
  EXPECT_FALSE(decode_record(with_version(kRecordVersion - 1)));
  EXPECT_FALSE(decode_record(with_version(kRecordVersion + 1)));
}

TEST(SegmentShape, OtherVersionsAreNotRead) {
  const SegmentHeader header =
      encode_segment_header({.format = test_format(100), .num_slots = 10});
  const auto with_version = [&](int version) {
    return with_number<std::uint32_t>(header, 8, version, 64);
  };
  const auto with_record = [&](std::size_t offset, std::size_t number) {
    return with_number<std::uint16_t>(header, offset, static_cast<int>(number), 64);
  };
  EXPECT_EQ(with_version(kSegmentVersion), header);
  EXPECT_FALSE(decode_segment_header(with_version(kSegmentVersion - 1)));
  EXPECT_FALSE(decode_segment_header(with_version(kSegmentVersion + 1)));
  EXPECT_EQ(with_record(12, kRecordVersion), header);
  EXPECT_FALSE(decode_segment_header(with_record(12, kRecordVersion - 1)));
  EXPECT_FALSE(decode_segment_header(with_record(12, kRecordVersion + 1)));
  EXPECT_EQ(with_record(14, kRecordHeaderSizeBytes), header);
  EXPECT_FALSE(decode_segment_header(with_record(14, kRecordHeaderSizeBytes + 8)));
}

TEST(SegmentShape, FillsWhatItIsGivenAndNoMore) {
  for (const std::int64_t block_bytes : {1, 4095, 4096, 4097, 368'640}) {
    for (const std::int64_t size_bytes : {0, 4096, 8192, 12'288, 12'289, 1 << 20, 100'000'001}) {
      SegmentShape shape{.format = test_format(block_bytes),
                         .num_slots = slots_within(size_bytes, block_bytes)};
      ASSERT_GE(shape.num_slots, 0);
      if (shape.num_slots > 0) {
        EXPECT_LE(shape.file_size_bytes(), size_bytes);
        const auto read = decode_segment_header(encode_segment_header(shape));
        ASSERT_TRUE(read);
        EXPECT_EQ(read->num_slots, shape.num_slots);
        EXPECT_EQ(read->format.block_size_bytes, block_bytes);
      }
      ++shape.num_slots;
      EXPECT_GT(shape.file_size_bytes(), size_bytes);
    }
  }
}

}  // namespace
}  // namespace larder
