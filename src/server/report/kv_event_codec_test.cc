#include "server/report/kv_event_codec.h"

#include <gtest/gtest.h>

#include "server/report/kv_event_test_support.h"

namespace larder {
namespace {

using namespace kv_event_test;

TEST(KvEventCodec, HashIsTheDigestsLastEightBytes) {
  EXPECT_EQ(kv_event_hash(digest_of(0)), 0xA1A2'A3A4'A5A6'A7A8);
  EXPECT_EQ(kv_event_hash(digest_of(3)), 0xA1A2'A3A4'A5A6'A7AB);
}

TEST(KvEventCodec, MapsHaveNames) {
  const Json events = decode({stored(0), stored(1), removed(7, 2), removed(9, 2)}, KvEventFormat::kMap);
  EXPECT_EQ(
      events,
      Json::array(
          {{{"type", "BlockStored"},
            {"block_hashes", hashes_of({0, 1})},
            {"parent_block_hash", nullptr},
            {"token_ids", tokens_of(0, 2)},
            {"block_size", 16},
            {"lora_id", nullptr},
            {"medium", "GPU"},
            {"lora_name", nullptr},
            {"extra_keys", nullptr},
            {"group_idx", 0},
            {"kv_cache_spec_kind", "full_attention"},
            {"kv_cache_spec_sliding_window", nullptr}},
           {{"type", "BlockRemoved"}, {"block_hashes", hashes_of({7, 9})}, {"medium", "GPU"}, {"group_idx", 2}}}));
}

TEST(KvEventCodec, ArraysHaveAnOrder) {
  KvEvent of_window = stored(4, 1);
  of_window.window = 512;
  const Json events = decode({of_window, removed(7)}, KvEventFormat::kArray);
  EXPECT_EQ(events, Json::array({Json::array({"BlockStored", hashes_of({4}), hash_of(3), tokens_of(4, 1), 16, nullptr,
                                              "GPU", nullptr, nullptr, 1, "sliding_window", 512}),
                                 Json::array({"BlockRemoved", hashes_of({7}), "GPU", 0})}));
}

TEST(KvEventCodec, MediaAreToldApart) {
  KvEvents events = {stored(0), stored(0), stored(1), removed(5), removed(6)};
  events[1].medium = events[2].medium = events[3].medium = KvMedium::kDisk;
  events[4].medium = KvMedium::kHost;
  events.push_back({.kind = KvEvent::Kind::kCleared, .medium = KvMedium::kDisk});
  const Json told = decode(events, KvEventFormat::kMap);
  ASSERT_EQ(told.size(), 5u);
  EXPECT_EQ(told[0]["medium"], "GPU");
  EXPECT_EQ(told[1]["medium"], "STORAGE");
  EXPECT_EQ(told[1]["block_hashes"], hashes_of({0, 1}));
  EXPECT_EQ(told[2]["medium"], "STORAGE");
  EXPECT_EQ(told[3]["medium"], "CPU");
  EXPECT_EQ(told[4], Json({{"type", "AllBlocksCleared"}}));
}

TEST(KvEventCodec, ClearedHasNoFields) {
  EXPECT_EQ(events_of(encode_kv_clear(kNow, KvEventFormat::kMap)), Json::array({{{"type", "AllBlocksCleared"}}}));
  EXPECT_EQ(events_of(encode_kv_clear(kNow, KvEventFormat::kArray)), Json::array({Json::array({"AllBlocksCleared"})}));
}

TEST(KvEventCodec, SaltIsAKeyOfAPromptsFirstBlock) {
  const Json events = decode({stored(0, 0, "pepper"), stored(1, 0, "pepper")}, KvEventFormat::kMap);
  const Json key = to_hex(salt_digest("pepper")).substr(0, 16);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["extra_keys"], Json::array({Json::array({key}), nullptr}));
  EXPECT_EQ(decode({stored(1, 0, "pepper")}, KvEventFormat::kMap)[0]["extra_keys"], nullptr);
  EXPECT_EQ(events[0]["parent_block_hash"], nullptr);
}

// Where all clients have one key, a router cannot tell its salt from none.
TEST(KvEventCodec, SaltOfAllClientsIsNone) {
  const KvEvents peppered = {stored(0, 0, "pepper")};
  EXPECT_EQ(decode(peppered, KvEventFormat::kMap, "pepper")[0]["extra_keys"], nullptr);
  EXPECT_NE(decode(peppered, KvEventFormat::kMap, "salt")[0]["extra_keys"], nullptr);
  const Json none = Json::array({Json::array({to_hex(salt_digest({})).substr(0, 16)})});
  EXPECT_EQ(decode({stored(0)}, KvEventFormat::kMap, "pepper")[0]["extra_keys"], none);
}

TEST(KvEventCodec, JoinsWhatContinues) {
  const auto num_events = [](const KvEvents& events) { return decode(events, KvEventFormat::kMap).size(); };
  EXPECT_EQ(num_events({}), 0u);
  EXPECT_EQ(num_events({stored(0), stored(1), stored(2)}), 1u);
  EXPECT_EQ(num_events({stored(0), stored(2)}), 2u);
  EXPECT_EQ(num_events({stored(1), stored(0)}), 2u);
  EXPECT_EQ(num_events({stored(0), stored(1, 1)}), 2u);
  EXPECT_EQ(num_events({stored(0), stored(1, 0, "salt")}), 2u);
  EXPECT_EQ(num_events({stored(0), removed(0), stored(1)}), 3u);
  EXPECT_EQ(num_events({removed(0), removed(5), removed(3)}), 1u);
  EXPECT_EQ(num_events({removed(0), removed(1, 1)}), 2u);
  // A prompt's first block continues none, whatever its salt's address is.
  KvEvent first = stored(1);
  first.is_first = true;
  EXPECT_EQ(num_events({stored(0), first}), 2u);
}

// As a model with windows tells of them, block by block.
TEST(KvEventCodec, JoinsEachGroups) {
  const KvEvents both = {stored(0), stored(0, 1), stored(1), stored(1, 1), removed(0, 1), removed(0), removed(1, 1)};
  const Json events = decode(both, KvEventFormat::kMap);
  ASSERT_EQ(events.size(), 4u);
  for (std::size_t group = 0; group < 2; ++group) {
    EXPECT_EQ(events[group]["group_idx"], group);
    EXPECT_EQ(events[group]["block_hashes"], hashes_of({0, 1}));
    EXPECT_EQ(events[2 + group]["group_idx"], group);
  }
  EXPECT_EQ(events[3]["block_hashes"], hashes_of({0, 1}));
}

}  // namespace
}  // namespace larder
