// The remote tier's values and addresses, which need no server.
#include "kv/tiers/remote_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kv/tiers/remote_url.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

constexpr std::int64_t kBlockBytes = 50'000;

TEST(RemoteValue, ABombIsCutOff) {
  const TierFormat format = test_format(kBlockBytes);
  const TierBlock block = test_block(1, 0);
  // Says that it is a block, and grows to a thousand of them.
  const std::vector<std::byte> zeros(1000 * kBlockBytes);
  TierFormat huge = format;
  huge.block_size_bytes = static_cast<std::int64_t>(zeros.size());
  const RemoteValue bomb = encode_remote_value(huge, block, zeros, 3);
  TierRecord record = *decode_record(bomb.header);
  record.payload_size_bytes = format.block_size_bytes;
  record.payload_hash = hash_payload(std::span(zeros).first(kBlockBytes));
  const RecordHeader header = encode_record(record);
  std::vector<std::byte> value(header.begin(), header.end());
  value.insert(value.end(), bomb.compressed.begin(), bomb.compressed.end());
  std::vector<std::byte> bytes(kBlockBytes);
  EXPECT_FALSE(decode_remote_value(value, format, block, bytes));
}

TEST(RemoteValue, RoundTripsAndComparesEverything) {
  const TierFormat format = test_format(1000);
  const TierBlock block = test_block(1, 2, 1);
  std::vector<std::byte> bytes = test_bytes(block, 1000);
  std::fill(bytes.begin(), bytes.begin() + 700, std::byte{7});
  for (const int level : {0, 1, 19}) {
    const RemoteValue encoded = encode_remote_value(format, block, bytes, level);
    std::vector<std::byte> value(encoded.header.begin(), encoded.header.end());
    const auto& payload = encoded.compressed.empty() ? bytes : encoded.compressed;
    value.insert(value.end(), payload.begin(), payload.end());
    EXPECT_EQ(encoded.compressed.empty(), level == 0);
    std::vector<std::byte> out(1000);
    ASSERT_TRUE(decode_remote_value(value, format, block, out));
    EXPECT_EQ(out, bytes);
    // Any one bit.
    for (std::size_t i = 0; i < value.size(); ++i) {
      value[i] ^= std::byte{1};
      // zstd does not look at every bit of its own frame; the bytes that come out are right then.
      if (decode_remote_value(value, format, block, out)) {
        ASSERT_GT(level, 0);
        ASSERT_EQ(out, bytes) << i;
      }
      value[i] ^= std::byte{1};
    }
    TierBlock other = block;
    other.group = 0;
    EXPECT_FALSE(decode_remote_value(value, format, other, out));
  }
}

TEST(RemoteUrl, IsRead) {
  const RemoteUrl plain = parse_remote_url("redis://cache.example");
  EXPECT_EQ(plain.host, "cache.example");
  EXPECT_EQ(plain.port, 6379);
  EXPECT_EQ(plain.db, 0);
  const RemoteUrl full = parse_remote_url("redis://:p%3Aq@10.0.0.1:7000/12");
  EXPECT_EQ(full.password, "p:q");
  EXPECT_EQ(full.host, "10.0.0.1");
  EXPECT_EQ(full.port, 7000);
  EXPECT_EQ(full.db, 12);
  EXPECT_EQ(full.user, "");
  const RemoteUrl user = parse_remote_url("redis://lar%3Ader:a:b@h");
  EXPECT_EQ(user.user, "lar:der");
  EXPECT_EQ(user.password, "a:b");
  const RemoteUrl ipv6 = parse_remote_url("redis://[::1]:7000/");
  EXPECT_EQ(ipv6.host, "::1");
  EXPECT_EQ(ipv6.display(), "[::1]:7000");
  EXPECT_FALSE(ipv6.is_tls);
  EXPECT_FALSE(parse_remote_url("valkey://h").is_tls);
  EXPECT_TRUE(parse_remote_url("valkeys://h").is_tls);
  const RemoteUrl tls = parse_remote_url("rediss://:p@cache.example:6380");
  EXPECT_TRUE(tls.is_tls);
  EXPECT_EQ(tls.port, 6380);
  EXPECT_THAT(tls.names, testing::ElementsAre("cache.example"));
}

TEST(RemoteUrl, SaysWhatIsWrong) {
  for (const char* url : {"",
                          "redis:",
                          "redis://",
                          "http://h",
                          "rediss:",
                          "valkey:/h",
                          "redis://h:",
                          "redis://h:0",
                          "redis://h:65536",
                          "redis://h:6379x",
                          "redis://h:-1",
                          "redis://h/x",
                          "redis://h/-1",
                          "redis://h/1/2",
                          "redis://secret@h",
                          "redis://:secret@",
                          "redis://:@h",
                          "redis://a b",
                          "redis://:secret%4@h",
                          "redis://:secret%zz@h",
                          "redis://[::1",
                          "redis://[::1]x",
                          "redis://h?db=1",
                          "redis://h#f",
                          "redis://:secret@h:99999"}) {
    try {
      parse_remote_url(url);
      ADD_FAILURE() << url;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("redis://[[user]:password@]host[:port][/db]"));
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("secret")));
    }
  }
}

}  // namespace
}  // namespace larder
