#include "server/chat/response_items.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace larder {
namespace {

std::string param_of(const std::string& text) {
  try {
    normalize_items(parse_json(text, {}), "input");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.param();
  }
  return "not refused";
}

std::vector<ItemPtr> items_of(const std::string& text) {
  SessionStore store({.max_bytes = 1 << 20, .max_count = 10});
  std::vector<ItemPtr> items;
  for (const Json& json : normalize_items(parse_json(text, {}), "input")) {
    items.push_back(make_item(json));
  }
  return items;
}

TEST(ResponseItems, GetTypeIdStatusAndParts) {
  const Json item = normalize_items("hello", "input").at(0);
  EXPECT_EQ(item["type"], "message");
  EXPECT_EQ(item["role"], "user");
  EXPECT_EQ(item["status"], "completed");
  EXPECT_TRUE(item["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(item["content"], Json::parse(R"([{"type": "input_text", "text": "hello"}])"));
  const Json kept = normalize_item(
      Json::parse(R"({"id": "msg_1", "role": "assistant", "content": "yes"})"), "input[0]");
  EXPECT_EQ(kept["id"], "msg_1");
  EXPECT_EQ(kept["content"][0]["type"], "output_text");
  EXPECT_TRUE(kept["content"][0]["annotations"].is_array());
  EXPECT_TRUE(is_reference(normalize_item(Json::parse(R"({"id": "msg_1"})"), "input[0]")));
}

TEST(ResponseItems, CallsAreNamedAsTheModelKnowsTheTools) {
  const std::vector<ItemPtr> items = items_of(R"([
      {"type": "function_call", "call_id": "1", "namespace": "mail", "name": "search", "arguments": "{}"},
      {"type": "function_call", "call_id": "2", "namespace": "mail", "name": "send", "arguments": "{}"},
      {"type": "function_call", "call_id": "3", "name": "search", "arguments": "{}"}])");
  const auto names = [&](const ToolNames& tools) {
    std::vector<std::string> list;
    const ItemChat chat = to_chat("", items, tools);
    for (const Json& call : chat.messages.at(0).at("tool_calls")) list.push_back(call["function"]["name"]);
    return list;
  };
  EXPECT_EQ(names({}), (std::vector<std::string>{"search", "send", "search"}));
  EXPECT_EQ(names({{"mail.search", {"mail", "search"}}, {"send", {"mail", "send"}}}),
            (std::vector<std::string>{"mail.search", "send", "search"}));
  EXPECT_EQ(names({{"mail.search", {"", "mail.search"}}}), (std::vector<std::string>{"search", "send", "search"}));
}

TEST(ResponseItems, ErrorsNameTheField) {
  EXPECT_EQ(param_of("3"), "input");
  EXPECT_EQ(param_of(R"([3])"), "input[0]");
  EXPECT_EQ(param_of(R"([{"role": "robot", "content": "x"}])"), "input[0].role");
  EXPECT_EQ(param_of(R"([{"role": "user"}])"), "input[0].content");
  EXPECT_EQ(param_of(R"([{"role": "user", "content": 3}])"), "input[0].content");
  EXPECT_EQ(param_of(R"([{"role": "user", "content": "x"},
                         {"role": "user", "content": [{"type": "input_image"}]}])"),
            "input[1].content[0].type");
  // Fault 27: nothing is fetched, from wherever.
  EXPECT_EQ(param_of(R"([{"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/x"}]}])"),
            "input[0].content[0].type");
  EXPECT_EQ(param_of(R"([{"role": "user", "content": [{"type": "input_file", "file_url": "http://[fe80::1]/x"}]}])"),
            "input[0].content[0].file_url");
  EXPECT_EQ(param_of(R"([{"role": "user", "content": [{"type": "input_text"}]}])"),
            "input[0].content[0].text");
  EXPECT_EQ(param_of(R"([{"type": "computer_call"}])"), "input[0].type");
  EXPECT_EQ(param_of(R"([{"type": "function_call", "call_id": "a", "name": "b"}])"),
            "input[0].arguments");
  EXPECT_EQ(param_of(R"([{"type": "function_call_output", "call_id": "a"}])"), "input[0].output");
  EXPECT_EQ(param_of(R"([{"type": "custom_tool_call", "call_id": "a", "name": "b"}])"), "input[0].input");
  EXPECT_EQ(param_of(R"([{"type": "custom_tool_call", "call_id": "a", "name": "", "input": "x"}])"), "input[0].name");
  EXPECT_EQ(param_of(R"([{"type": "custom_tool_call_output", "call_id": "a"}])"), "input[0].output");
}

TEST(ResponseItems, SpellAChat) {
  const ItemChat chat = to_chat("Be brief.", items_of(R"([
      {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"text": "hidden"}]},
      {"role": "assistant", "content": "let me look"},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}"},
      {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": "one"},
      {"type": "function_call_output", "call_id": "2",
       "output": [{"type": "input_text", "text": "two"}]}])"));
  EXPECT_EQ(chat.messages, Json::parse(R"([
      {"role": "system", "content": "Be brief."},
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": "let me look", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "one"},
      {"role": "tool", "tool_call_id": "2", "content": "two"}])"));
  EXPECT_EQ(chat.item_of, (std::vector<std::size_t>{0, 0, 2, 5, 6}));
  EXPECT_EQ(chat.sent_as, (std::vector<int>{-1, 0, 2, 5, 6}));
}

TEST(ResponseItems, CallsOfCustomToolsAreCallsOfTheirFunctions) {
  const std::vector<ItemPtr> items = items_of(R"([
      {"role": "user", "content": "a"},
      {"type": "custom_tool_call", "call_id": "1", "name": "sh", "input": "ls \"a\""},
      {"type": "custom_tool_call", "call_id": "2", "name": "sh", "namespace": "n", "input": ""},
      {"type": "custom_tool_call_output", "call_id": "1", "output": "one"}])");
  EXPECT_TRUE(items[1]->id().starts_with("ctc_") && items[3]->id().starts_with("ctco_"));
  EXPECT_EQ(text_of(items[1]->json), "ls \"a\"");
  EXPECT_EQ(to_chat("", items, {{"n.sh", {"n", "sh"}}}).messages, Json::parse(R"([
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": "", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "sh", "arguments": {"input": "ls \"a\""}}},
        {"id": "2", "type": "function", "function": {"name": "n.sh", "arguments": {"input": ""}}}]},
      {"role": "tool", "tool_call_id": "1", "content": "one"}])"));
}

// Models think again between what they tell and what they call, and behind calls.
TEST(ResponseItems, AnAnswerHasAllOfItsThoughts) {
  const auto thought = [](const char* text) {
    return Json{{"type", "reasoning"}, {"content", {{{"type", "reasoning_text"}, {"text", text}}}}};
  };
  const Json call = {{"type", "function_call"}, {"call_id", "1"}, {"name", "f"}, {"arguments", "{}"}};
  const Json text = {{"role", "assistant"}, {"content", "I look."}}, question = {{"role", "user"}, {"content", "a"}};
  const auto thoughts_of = [](const Json& items) {
    return to_chat("", items_of(items.dump())).messages.back().value("reasoning_content", "");
  };
  EXPECT_EQ(thoughts_of({question, thought("A"), text, thought("B"), call}), "A\n\nB");
  EXPECT_EQ(thoughts_of({question, thought("A"), thought("B"), call}), "A\n\nB");
  EXPECT_EQ(thoughts_of({question, thought("A"), call, thought("B"), text}), "A\n\nB");
  EXPECT_EQ(thoughts_of({question, thought("A"), question, text}), "");
}

// SDKs send what a part does not have as null.
TEST(ResponseItems, ATextThatIsNullIsNone) {
  const std::vector<ItemPtr> items = items_of(R"([
      {"role": "system", "content": [{"type": "refusal", "refusal": "a", "text": null},
                                     {"type": "input_text", "text": "b"}]},
      {"role": "assistant", "content": [{"type": "refusal", "refusal": "c", "text": null}]},
      {"role": "user", "content": "hi"}])");
  EXPECT_EQ(text_of(items[0]->json), "a\nb");
  const Json messages = to_chat("Be brief.", items).messages;
  EXPECT_EQ(messages[0]["content"].back()["text"], "b");
  EXPECT_EQ(messages[1]["content"][0]["text"], "c");
}

// As in a chat completion: else the result would stand behind another message than the call.
TEST(ResponseItems, TextBehindACallIsOfTheSameAnswer) {
  const auto spell = [](const std::string& first, const std::string& text) {
    std::vector<ItemPtr> items = items_of(R"([{"role": "user", "content": "a"},)" + first + R"(
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"role": "assistant", "content": )" + text + R"(},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"role": "assistant", "content": "done"}])");
    for (ItemPtr& item : items) {
      if (item->json.value("role", "") != "assistant") continue;
      item = make_item(item->json, std::make_shared<const std::vector<TokenId>>(1, 1));
    }
    return to_chat("", items);
  };
  const auto check = [](const ItemChat& chat, const Json& content) {
    ASSERT_EQ(chat.messages.size(), 4u) << chat.messages;
    EXPECT_EQ(chat.messages[1]["content"], content);
    EXPECT_EQ(chat.messages[1]["tool_calls"].size(), 2u);
    EXPECT_EQ(chat.messages[2]["role"], "tool");
    ASSERT_EQ(chat.known_turns.size(), 1u) << "tokens of a part are not the answer's";
    EXPECT_EQ(chat.known_turns[0].message, 3u);
    EXPECT_EQ(chat.item_of.size(), 4u);
  };
  check(spell("", R"("let me look")"), "let me look");
  check(spell(R"({"role": "assistant", "content": "let me "},)", R"("look")"), "let me look");
  check(spell(R"({"role": "assistant", "content": "let me"},)", R"([{"type": "output_text",
      "text": "look", "prompt_cache_breakpoint": {"mode": "explicit"}}])"),
        Json::parse(R"([{"type": "text", "text": "let me"},
      {"type": "text", "text": "look", "prompt_cache_breakpoint": {"mode": "explicit"}}])"));
}

TEST(ResponseItems, SystemItemsJoinTheInstructions) {
  ItemChat chat = to_chat("Be brief.", items_of(R"([{"role": "developer", "content": "Be kind."},
      {"role": "system", "content": "Be true."}, {"role": "user", "content": "a"},
      {"role": "system", "content": "later"}])"));
  ASSERT_EQ(chat.messages.size(), 3u);
  EXPECT_EQ(chat.messages[0], Json::parse(R"({"role": "system",
      "content": "Be brief.\n\nBe kind.\n\nBe true."})"));
  EXPECT_EQ(chat.system_items, "Be kind.\n\nBe true.");
  EXPECT_EQ(chat.messages[2]["content"], "later");

  chat = to_chat("Be brief.", items_of(R"([{"role": "developer", "content": [{"type": "input_text",
      "text": "Be kind.", "prompt_cache_breakpoint": {"mode": "explicit"}}]}])"));
  EXPECT_EQ(chat.messages, Json::parse(R"([{"role": "system", "content": [
      {"type": "text", "text": "Be brief."},
      {"type": "text", "text": "\nBe kind.", "prompt_cache_breakpoint": {"mode": "explicit"}}]}])"))
      << "an end of line comes between parts";
  EXPECT_EQ(chat.system_items, "Be kind.");

  const Json kept = Json::parse(R"([{"role": "system", "content": "Hm."},
                                    {"role": "user", "content": "a"}])");
  chat = to_chat("Be brief.", {make_item(make_compaction("They met.", kept, {1, 1}))});
  ASSERT_EQ(chat.messages.size(), 2u);
  EXPECT_EQ(chat.messages[0]["content"], "Be brief.\n\nHm.");
  EXPECT_EQ(to_chat("", items_of(R"([{"role": "system", "content": "a"}])")).system_items, "");
}

TEST(ResponseItems, ASummaryStandsForWhatIsNotThere) {
  const ItemChat chat = to_chat("Be brief.", items_of(R"([
      {"type": "compaction", "encrypted_content": "They met."},
      {"role": "user", "content": "a"}])"));
  ASSERT_EQ(chat.messages.size(), 2u);
  EXPECT_EQ(chat.messages[0]["content"], "Be brief.");
  EXPECT_EQ(chat.summary, "They met.");
}

TEST(ResponseItems, OurCompactionsStandForWhatTheySumUp) {
  const SessionStore store({.max_bytes = 1 << 20, .max_count = 10});
  const Json kept = Json::parse(R"([{"role": "system", "content": "Hm."},
                                    {"role": "user", "content": "a"}])");
  MessageRun run;
  run.add({{"role", "user"}, {"content", "We met."}});
  const SummedRun met = run.whole();
  const ItemPtr ours = make_item(make_compaction("They met.", kept, met));
  std::vector<ItemPtr> rest = items_of(R"([{"role": "assistant", "content": "b"}])");
  rest.insert(rest.begin(), ours);
  const ItemChat alone = to_chat("", rest);
  EXPECT_EQ(alone.summary, "They met.");
  EXPECT_EQ(alone.told_summary, "They met.");
  EXPECT_EQ(alone.told_first_kept, kept[1]);
  ASSERT_EQ(alone.messages.size(), 3u);
  EXPECT_EQ(alone.messages[1], kept[1]);
  EXPECT_EQ(alone.sent_as, (std::vector<int>{-1, -1, 1}));

  // With all that it sums up before it, or with the system's messages.
  std::vector<ItemPtr> all = items_of(R"([{"role": "user", "content": "We met."}, {"role": "user", "content": "a"}])");
  all.insert(all.end(), rest.begin(), rest.end());
  EXPECT_EQ(to_chat("", all).messages.size(), 3u);
  EXPECT_EQ(to_chat("", all).summary, "");
  EXPECT_EQ(to_chat("", all).told_summary, "They met.");
  std::vector<ItemPtr> system = items_of(R"([{"role": "system", "content": "Hm."}])");
  system.insert(system.end(), rest.begin(), rest.end());
  EXPECT_EQ(to_chat("", system).messages.size(), 3u);

  // With what it keeps before it, and no more.
  const std::vector<ItemPtr> beside(all.begin() + 1, all.end());
  for (const char* instructions : {"", "Be brief."}) {
    EXPECT_EQ(to_chat(instructions, beside).summary, "They met.");
    EXPECT_EQ(to_chat(instructions, beside).messages.back()["content"], "b");
    EXPECT_FALSE(to_chat(instructions, beside).holds_compacted);
  }
  EXPECT_TRUE(alone.holds_compacted);
  std::vector<ItemPtr> twice = beside;
  twice.insert(twice.begin() + 1, make_item(make_compaction("They had met.", kept, met)));
  EXPECT_EQ(to_chat("", twice).summary, "They met.") << "the last one's";

  // Behind other messages than those that it keeps or sums up.
  std::vector<ItemPtr> behind = items_of(R"([{"role": "user", "content": "It rains."}])");
  behind.insert(behind.end(), rest.begin(), rest.end());
  for (const char* instructions : {"", "Be brief."}) {
    const ItemChat chat = to_chat(instructions, behind);
    EXPECT_EQ(chat.summary, "They met.");
    ASSERT_EQ(chat.messages.size(), 4u);
    EXPECT_EQ(chat.messages[0]["content"], *instructions == 0 ? "Hm." : "Be brief.\n\nHm.");
    EXPECT_EQ(chat.messages[1]["content"], "It rains.");
    EXPECT_EQ(chat.messages[2], kept[1]);
    EXPECT_EQ(chat.sent_as, (std::vector<int>{-1, 0, -1, 2}));
    EXPECT_TRUE(chat.holds_compacted);
  }
  behind.insert(behind.begin() + 1, make_item(make_compaction("It rained.", kept, {1, 1})));
  behind.insert(behind.begin() + 2, behind[0]);
  EXPECT_EQ(to_chat("", behind).summary, "It rained.\n\nThey met.") << "neither is among what the other keeps";
  EXPECT_EQ(to_chat("", behind).messages.size(), 6u) << "with one system prompt";
  std::vector<ItemPtr> between = beside;
  between.insert(between.begin(), behind[0]);
  EXPECT_EQ(to_chat("", between).summary, "They met.");
  EXPECT_EQ(to_chat("", between).messages.size(), 3u) << "what it keeps is there";

  // The system's messages of a chat that goes on behind others go first, in their order.
  const Json two = Json::parse(R"([{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, {"role": "user", "content": "a"}])");
  const ItemChat led = to_chat("", {behind[0], make_item(make_compaction("They met.", two, met))});
  ASSERT_EQ(led.messages.size(), 4u);
  EXPECT_EQ(led.messages[0]["content"], "A");
  EXPECT_EQ(led.messages[1]["content"], "B");
  EXPECT_EQ(led.item_of, (std::vector<std::size_t>{1, 1, 0, 1}));

  // One that somebody changed is a text like another's.
  const std::string broken = ours->json["encrypted_content"].get<std::string>().substr(0, 30);
  const ItemPtr item = make_item({{"id", "x"}, {"type", "compaction"}, {"encrypted_content", broken}});
  EXPECT_EQ(to_chat("", {item}).summary, broken);
}

// All that was summed up has to be there, not one message like its first.
TEST(ResponseItems, WordsThatAreSaidAgainAreNotWhatWasSummedUp) {
  const auto said = items_of(R"([{"role": "user", "content": "go on"}, {"role": "assistant", "content": "One."},
                                 {"role": "user", "content": "go on"}, {"role": "assistant", "content": "Two."},
                                 {"role": "user", "content": "go on"}])");
  MessageRun run;
  for (const ItemPtr& item : said) run.add({{"role", item->json["role"]}, {"content", text_of(item->json)}});
  const Json kept = Json::parse(R"([{"role": "user", "content": "go on"}])");
  const ItemPtr ours = make_item(make_compaction("One, two.", kept, run.whole()));
  EXPECT_EQ(to_chat("", {said[0], ours}).summary, "One, two.") << "as the server puts it";
  EXPECT_EQ(to_chat("", {said[0], ours}).messages.size(), 1u);
  EXPECT_EQ(to_chat("", {said[0], said[1], ours}).summary, "One, two.");
  std::vector<ItemPtr> whole = said;
  whole.push_back(ours);
  EXPECT_EQ(to_chat("", whole).summary, "");
  EXPECT_EQ(to_chat("", whole).messages.size(), 5u);
  whole.insert(whole.begin(), items_of(R"([{"role": "user", "content": "Before."}])")[0]);
  EXPECT_EQ(to_chat("", whole).summary, "");
  whole[3] = whole[2];
  EXPECT_EQ(to_chat("", whole).summary, "One, two.") << "something else is there";
}

TEST(ResponseItems, MarksStayWithTheirParts) {
  const ItemChat chat = to_chat("", items_of(R"([{"role": "user", "content": [
      {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
      {"type": "input_text", "text": "b"}]}])"));
  EXPECT_EQ(chat.messages[0]["content"], Json::parse(R"([
      {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
      {"type": "text", "text": "b"}])"));
}

}  // namespace
}  // namespace larder
