#include "server/json_reader.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash_test_support.h"

namespace larder {
namespace {

std::string error_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(JsonReader, KeepsValuesAndTheOrderOfKeys) {
  const Json value =
      parse_json(R"({"z":[1,-2,2.5,true,null,"a\u00e9\ud83d\ude00"],"a":{"y":{},"x":[]}})", {});
  EXPECT_EQ(value.dump(), "{\"z\":[1,-2,2.5,true,null,\"aé😀\"],\"a\":{\"y\":{},\"x\":[]}}");
  EXPECT_EQ(parse_json("7", {}).get<int>(), 7);
}

TEST(JsonReader, KeepsEveryDigitOfAnInteger) {
  for (const char* text :
       {"25000000000000000001", "-9223372036854775809", "[{\"a\":[18446744073709551616,1.5,\"x\"]},{},[]]",
        "115792089237316195423570985008687907853269984665640564039457584007913129639935"}) {
    EXPECT_EQ(dump_json(parse_json(text, {})), text);
  }
  EXPECT_TRUE(is_long_integer(parse_json("18446744073709551616", {})));
  EXPECT_FALSE(is_long_integer(parse_json("18446744073709551615", {})));
  std::string spaced;
  append_json(parse_json(R"({"a":[1,18446744073709551616],"b":{}})", {}), ", ", ": ", spaced);
  EXPECT_EQ(spaced, R"({"a": [1, 18446744073709551616], "b": {}})");
}

TEST(JsonReader, WrittenJsonIsPassedOn) {
  const std::string text = R"([{"token":"a","bytes":[97],"logprob":-0.25}])";
  const Json written = written_json({text.begin(), text.end()});
  EXPECT_FALSE(is_long_integer(written));
  EXPECT_EQ(dump_json({{"a", "é"}, {"logprobs", written}, {"b", Json::array({1})}}),
            R"({"a":"é","logprobs":)" + text + R"(,"b":[1]})");
}

TEST(JsonReader, RefusesWhatIsNotJson) {
  for (const char* text :
       {"", " ", "{", "[1,]", "{\"a\":1,}", "{a:1}", "nul", "NaN", "[Infinity]", "[1e400]",
        "[-1e999]", "[01]", "'a'", "[1] x", "\"\x01\"", "/*c*/1", "\xEF\xBB"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
}

TEST(JsonReader, RefusesBrokenUnicode) {
  for (const char* text :
       {"\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE2\x82\"",
        R"("\ud800")", R"("\udc00")", R"("\ud800x")", R"("\ud800\ud800")"}) {
    EXPECT_NE(error_of(text).find("not valid JSON"), std::string::npos) << text;
  }
}

TEST(JsonReader, RefusesTheSameKeyTwice) {
  EXPECT_NE(error_of(R"({"n":1,"m":2,"n":3})").find("\"n\" twice"), std::string::npos);
  EXPECT_NE(error_of(R"({"a":{"n":1,"\u006e":3}})").find("twice"), std::string::npos);
  EXPECT_EQ(error_of(R"({"a":{"n":1},"b":{"n":1}})"), "");
}

TEST(JsonReader, BoundsDepthWithoutRecursion) {
  const std::string deep(100'000, '[');
  EXPECT_NE(error_of(deep).find("64 levels"), std::string::npos);
  EXPECT_NE(error_of([] {
              std::string text;
              for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
              return text;
            }())
                .find("64 levels"),
            std::string::npos);
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_NE(error_of(std::string(65, '[') + std::string(65, ']')), "");
}

TEST(JsonReader, BoundsTheNumberOfValues) {
  EXPECT_EQ(error_of("[1,2,3]", {.max_depth = 8, .max_values = 4}), "");
  EXPECT_NE(error_of("[1,2,3,4]", {.max_depth = 8, .max_values = 4}).find("4 JSON values"),
            std::string::npos);
}

TEST(JsonReader, TakesLinearTimeInKeys) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += "\"key" + std::to_string(i) + "\":1,";
  text += "\"end\":1}";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(text, {}).size(), 300'001u);
  // Looking through all keys for each one would be 45e9 comparisons: minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// To compare each with all of them before would take many minutes.
TEST(JsonReader, KeysOfOneHashAreLikeOthers) {
  const std::vector<std::string> keys = texts_of_one_hash(300'000);
#ifdef __GLIBCXX__
  ASSERT_EQ(std::hash<std::string>{}(keys.front()), std::hash<std::string>{}(keys.back()));
#endif
  std::string text = "{";
  for (const std::string& key : keys) text += dump_json(key) + ":1,";
  for (int i = 0; i < 6; ++i) EXPECT_EQ(parse_json(text + "\"end\":1}", {}).size(), keys.size() + 1);
  EXPECT_NE(error_of(text + dump_json(keys[7]) + ":1}").find("twice"), std::string::npos);
}

TEST(JsonReader, ShortensBetweenCharacters) {
  EXPECT_EQ(shorten("abc", 3), "abc");
  EXPECT_EQ(shorten("aé", 2), "a...");
  EXPECT_EQ(shorten(std::string(200, 'x'), 5), "xxxxx...");
}

TEST(JsonReader, WritesValidUtf8) { EXPECT_EQ(dump_json("a\xFF"), "\"a\xEF\xBF\xBD\""); }

}  // namespace
}  // namespace larder
