#include "server/upstream/upstream_body.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/json_reader.h"

namespace larder {
namespace {

std::string edited(const std::string& body, const std::string& name = "m") {
  parse_json(body, {});  // what the server does first
  const BodyEdit edit = edit_model(body, name);
  const std::string result = apply_edit(body, edit);
  EXPECT_EQ(result.size(), edit.new_size(body.size()));
  EXPECT_EQ(parse_json(result, {})["model"], name) << result;
  return result;
}

TEST(UpstreamBodyTest, ChangesTheValueAlone) {
  EXPECT_EQ(edited(R"({"model":"a"})"), R"({"model":"m"})");
  EXPECT_EQ(edited("\r\n { \"seed\" : 1.0e0 ,\t\"model\" : \"a\" , \"n\":1 } \n"),
            "\r\n { \"seed\" : 1.0e0 ,\t\"model\" : \"m\" , \"n\":1 } \n");
  EXPECT_EQ(edited(R"({"model":null,"a":[]})"), R"({"model":"m","a":[]})");
  EXPECT_EQ(edited(R"({"model":null})"), R"({"model":"m"})");
  EXPECT_EQ(edited(R"({"a":-1.5,"model":"x"})"), R"({"a":-1.5,"model":"m"})");
}

// It ended the server.
TEST(UpstreamBodyTest, PassesOverAByteOrderMark) {
  EXPECT_EQ(edited("\xEF\xBB\xBF {\"model\":\"a\"}"), "\xEF\xBB\xBF {\"model\":\"m\"}");
}

TEST(UpstreamBodyTest, PutsItInWhereItIsMissing) {
  EXPECT_EQ(edited("{}"), R"({"model":"m"})");
  EXPECT_EQ(edited(" { } "), R"( {"model":"m" } )");
  EXPECT_EQ(edited(R"({ "a": 1})"), R"({"model":"m", "a": 1})");
}

TEST(UpstreamBodyTest, LooksAtTheOutermostObjectAlone) {
  EXPECT_EQ(edited(R"({"a":{"model":"x","b":[{"model":"y"}]},"model":"z"})"),
            R"({"a":{"model":"x","b":[{"model":"y"}]},"model":"m"})");
  EXPECT_EQ(edited(R"({"a":["model","x"]})"), R"({"model":"m","a":["model","x"]})");
  EXPECT_EQ(edited(R"({"a":"model","b":"\"model\":\"x\""})"), R"({"model":"m","a":"model","b":"\"model\":\"x\""})");
}

TEST(UpstreamBodyTest, BracketsAndQuotesInStrings) {
  EXPECT_EQ(edited(R"({"a":"}{][,\\","b":["\"]","{"],"model":"x","c":"\\\""})"),
            R"({"a":"}{][,\\","b":["\"]","{"],"model":"m","c":"\\\""})");
}

TEST(UpstreamBodyTest, Escapes) {
  EXPECT_EQ(edited(R"({"\u006dodel":"x\u0022\\"})"), R"({"\u006dodel":"m"})");
  EXPECT_EQ(edited(R"({"mode\\l":1,"model\"":2,"\"model":3,"m\u006fdel":"x"})"),
            R"({"mode\\l":1,"model\"":2,"\"model":3,"m\u006fdel":"m"})");
  EXPECT_EQ(edited(R"({"model":"a"})", "q\"\\\n\u00e9"), "{\"model\":\"q\\\"\\\\\\n\u00e9\"}");
}

// Another reader might take the other one.
TEST(UpstreamBodyTest, ADuplicateIsNoBody) {
  EXPECT_THROW(parse_json(R"({"model":"a","model":"b"})", {}), Error);
  EXPECT_THROW(parse_json(R"({"model":"a","m\u006fdel":"b"})", {}), Error);
}

TEST(UpstreamBodyTest, Nothing) {
  EXPECT_EQ(apply_edit("{}", {}), "{}");
  EXPECT_EQ(BodyEdit{}.new_size(2), 2U);
}

}  // namespace
}  // namespace larder
