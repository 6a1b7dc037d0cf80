#include "server/prompt.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

// A chat whose last message is the answer that is to be gone on with.
ChatRequest continued(const std::string& answer) {
  ChatRequest request;
  request.messages = parse_json(R"([{"role":"user","content":"hi"},)" + answer + "]", {});
  request.continue_final_message = true;
  request.add_generation_prompt = false;
  return request;
}

TEST(Prompt, EndsWithTheTextThatIsGoneOnWith) {
  const TestServer server;
  const auto text = [&](const std::string& answer) {
    const PreparedPrompt prompt = encode_chat(continued(answer), server.model());
    return server.model().tokenizer.decode(prompt.tokens);
  };
  EXPECT_TRUE(text(R"({"role":"assistant","content":"hello"})").ends_with("assistant\nhello"));
}

// All that the template prints of it is its role, and a prompt that ends there is no turn at all.
TEST(Prompt, AnEmptyMessageCannotBeContinued) {
  const TestServer server;
  for (const char* answer :
       {R"({"role":"assistant","content":""})", R"({"role":"assistant","content":" \t\n\u000b\u00a0"})",
        R"({"role":"assistant","content":null})", R"({"role":"assistant","refusal":"no"})",
        R"({"role":"assistant","content":"","tool_calls":[]})",
        R"({"role":"assistant","content":"","tool_calls":null})"}) {
    try {
      encode_chat(continued(answer), server.model());
      ADD_FAILURE() << answer;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_EQ(error.param(), "continue_final_message");
    }
  }
  EXPECT_TRUE(can_be_continued(parse_json(R"({"content":"","tool_calls":[{}]})", {})));
  EXPECT_TRUE(can_be_continued(parse_json(R"({"content":" x"})", {})));
}

}  // namespace
}  // namespace larder
