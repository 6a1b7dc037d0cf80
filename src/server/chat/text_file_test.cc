#include "server/chat/text_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "server/api/openai_request.h"
#include "server/chat/response_items.h"
#include "server/json_reader.h"

namespace larder {
namespace {

std::string read(const std::string& file) {
  const Json json = parse_json(file, {});
  return text_of_file(Fields(json, "file"));
}

std::string fault_of(const std::string& file) {
  try {
    return "taken: " + read(file);
  } catch (const Error& error) {
    return error.message();
  }
}

// RFC 4648, section 10.
TEST(TextFile, IsReadFromBase64) {
  const struct {
    const char* data;
    const char* text;
  } kCases[] = {{"", ""},         {"Zg==", "f"},       {"Zm8=", "fo"},       {"Zm9v", "foo"},  {"Zm9vYg==", "foob"},
                {"Zm9vYmE=", "fooba"}, {"Zm9vYmFy", "foobar"}, {"Zm8", "fo"}, {"w6TCog==", "ä¢"}};
  for (const auto& [data, text] : kCases)
    EXPECT_EQ(read(fmt::format(R"({{"file_data": "data:text/plain;base64,{}"}})", data)), text) << data;
  EXPECT_EQ(read(R"({"filename": "a.md", "file_data": "data:text/markdown;charset=utf-8;base64,Zm9v"})"), "a.md\nfoo");
  EXPECT_EQ(read(R"({"file_data": "data:application/json;base64,e30="})"), "{}");
  EXPECT_EQ(read(R"({"file_data": "data:Text/Plain;Base64,Zm9v"})"), "foo");
}

TEST(TextFile, WhatIsNoTextIsRefusedByName) {
  const struct {
    const char* file;
    const char* message;
  } kCases[] = {
      {R"({"file_data": "data:application/pdf;base64,AAAA"})", "file.file_data: \"application/pdf;base64\" is not supported"},
      {R"({"file_data": "data:text/plain;base64,/w=="})", "file.file_data: is not a text in UTF-8"},
      {R"({"file_data": "data:text/plain;base64,Zm9v!"})", "file.file_data: is not in base64"},
      {R"({"file_data": "data:text/plain;base64,Zm9vY"})", "file.file_data: is not in base64"},
      {R"({"file_data": "data:text/plain,foo"})", "file.file_data: is not in base64"},
      {R"({"file_data": "foo"})", "file.file_data: is no data URL"},
      {R"({"filename": "a"})", "file.file_data: is missing"},
      {R"({"file_data": 1})", "file.file_data: must be a string"},
      {R"({"file_id": "file-1"})", "file.file_id: is not supported; send the file in file_data"},
      {R"({"file_url": "http://x/"})", "file.file_url: is not supported"},
  };
  for (const auto& [file, message] : kCases) EXPECT_TRUE(fault_of(file).starts_with(message)) << file << ": " << fault_of(file);
}

// As pydantic-ai sends one.
TEST(TextFile, OfAResponseIsKeptAsItsText) {
  const Json item = normalize_item(
      parse_json(R"({"role":"user","content":[{"text":"what","type":"input_text"},{"type":"input_file",
          "file_data":"data:text/plain;base64,YWJj","filename":"filename.txt","prompt_cache_breakpoint":{"mode":"explicit"}}]})", {}),
      "input[0]");
  EXPECT_EQ(item["content"][1], Json::parse(R"({"type":"input_text","text":"filename.txt\nabc","prompt_cache_breakpoint":{"mode":"explicit"}})"));
  EXPECT_EQ(text_of(item), "what\nfilename.txt\nabc");
}

TEST(TextFile, OfAChatIsAPartOfTheMessage) {
  const ServerLimits limits;
  const RequestRules rules{.limits = limits, .vocab_size = 128, .max_model_len = 100'000};
  const auto parse = [&](const char* part) {
    return parse_chat_request(
        parse_json(fmt::format(R"({{"messages":[{{"role":"user","content":[{{"text":"what","type":"text"}},{}]}}]}})", part), {}), rules);
  };
  const ChatRequest request =
      parse(R"({"file":{"file_data":"data:text/plain;base64,YWJj","filename":"filename.txt"},"type":"file"})");
  EXPECT_EQ(request.messages[0].json["content"], "what\nfilename.txt\nabc");
  EXPECT_EQ(request.messages[0].parts.size(), 2u);
  for (const auto& [part, param] : {std::pair{R"({"file":{"file_data":"data:application/pdf;base64,YWJj","filename":"filename.pdf"},"type":"file"})",
                                              "messages[0].content[1].file.file_data"},
                                    std::pair{R"({"type":"file"})", "messages[0].content[1].file"}}) {
    try {
      parse(part);
      ADD_FAILURE() << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.param(), param);
    }
  }
}

}  // namespace
}  // namespace larder
