// Anthropic's API over real sockets, with a tiny random model behind it.
#include <gtest/gtest.h>

#include <algorithm>

#include "server/api/reply_writer.h"
#include "server/api/responses_writer.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

struct Event {
  std::string name;
  Json data;
};

std::vector<Event> events_of(const std::string& body) {
  std::vector<Event> events;
  for (std::size_t at = 0; (at = body.find("event: ", at)) != std::string::npos;) {
    const auto line_end = body.find('\n', at);
    const auto end = body.find("\n\n", at);
    const std::string name = body.substr(at + 7, line_end - at - 7);
    const std::string data = body.substr(line_end + 7, end - line_end - 7);
    events.push_back({name, parse_json(data, {})});
    at = end;
  }
  return events;
}

std::string with(const std::string& fields) {
  return R"({"model":"tiny","max_tokens":12,"temperature":0,)" + fields + "}";
}

const std::string kHello = R"("messages":[{"role":"user","content":"hello"}])";

TEST(AnthropicMessages, StreamSaysWhatTheWholeReplySays) {
  TestServer server;
  const auto answer = server.post("/v1/messages", with(kHello));
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.head.find("request-id: req_"), std::string::npos);
  const Json whole = answer.json();
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["role"], "assistant");
  EXPECT_TRUE(whole["id"].get<std::string>().starts_with("msg_"));
  EXPECT_TRUE(whole["diagnostics"].is_null());
  const auto events = events_of(server.post("/v1/messages", with(kHello + R"(,"stream":true)")).body);
  ASSERT_GT(events.size(), 5u);
  std::string text;
  std::vector<std::string> order;
  for (const Event& event : events) {
    EXPECT_EQ(event.data["type"], event.name);
    if (order.empty() || order.back() != event.name) order.push_back(event.name);
    if (event.name == "content_block_delta") text += event.data["delta"]["text"].get<std::string>();
  }
  EXPECT_EQ(order, (std::vector<std::string>{"message_start", "ping", "content_block_start",
                                             "content_block_delta", "content_block_stop",
                                             "message_delta", "message_stop"}));
  EXPECT_EQ(text, whole["content"][0]["text"].get<std::string>());
  const Json& last = events[events.size() - 2].data;
  EXPECT_EQ(last["delta"]["stop_reason"], whole["stop_reason"]);
  EXPECT_EQ(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
  EXPECT_TRUE(events[0].data["message"]["content"].empty());
}

std::string marked(const std::string& text, const char* ttl) {
  return R"({"type":"text","text":")" + text + R"(","cache_control":{"type":"ephemeral","ttl":")" +
         ttl + "\"}}";
}

int sum_of(const Json& usage) {
  return usage["input_tokens"].get<int>() + usage["cache_creation_input_tokens"].get<int>() +
         usage["cache_read_input_tokens"].get<int>();
}

TEST(AnthropicMessages, UsageAddsUp) {
  TestServer server;
  const std::string system = R"("system":[)" + marked("You speak in riddles.", "1h") + "]";
  const auto prompt = [&](const std::string& question) {
    return system + R"(,"messages":[{"role":"user","content":[)" + marked(question, "5m") + "]}]";
  };
  const auto usage = [&](const std::string& question) {
    return server.post("/v1/messages", with(prompt(question))).json()["usage"];
  };
  const int total = server.post("/v1/messages/count_tokens", with(prompt("Who am I?")))
                        .json()["input_tokens"]
                        .get<int>();
  const Json first = usage("Who am I?");
  EXPECT_EQ(sum_of(first), total);
  EXPECT_EQ(first["cache_read_input_tokens"], 0);
  // <|im_start|>, "system\n", the text.
  EXPECT_EQ(first["cache_creation"]["ephemeral_1h_input_tokens"], 1 + 7 + 21);
  EXPECT_EQ(first["cache_creation"]["ephemeral_5m_input_tokens"], 2 + 1 + 5 + 9);
  EXPECT_EQ(first["input_tokens"], 2 + 1 + 10);  // <|im_end|>, "\n", <|im_start|>, "assistant\n"
  const Json second = usage("Who am I?");
  EXPECT_EQ(sum_of(second), total);
  EXPECT_EQ(second["cache_creation_input_tokens"], 0);
  EXPECT_EQ(second["cache_read_input_tokens"], total - 1);
  const Json other = usage("Who are you?");
  EXPECT_EQ(sum_of(other), total + 3);
  EXPECT_EQ(other["cache_read_input_tokens"], 29 + 2 + 1 + 5 + 5);  // to "Who a"
  EXPECT_EQ(other["cache_creation_input_tokens"], 12 - 5);
  EXPECT_EQ(other["cache_creation"]["ephemeral_5m_input_tokens"], 12 - 5);
  EXPECT_EQ(server.engine().stats().kv.num_pinned, 5);
}

TEST(AnthropicMessages, ARefusedPinCountsUnderTheTimeThatWasAsked) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_pinned_share = 0;
  TestServer server({}, engine);
  const std::string content = marked("Who am I, and who are you?", "1h");
  const Json usage =
      server.post("/v1/messages", with(R"("messages":[{"role":"user","content":[)" + content + "]}]"))
          .json()["usage"];
  EXPECT_EQ(server.engine().stats().kv.num_pins_refused, 1u);
  EXPECT_GT(usage["cache_creation_input_tokens"], 30);
  EXPECT_EQ(usage["cache_creation"]["ephemeral_1h_input_tokens"], usage["cache_creation_input_tokens"]);
  EXPECT_EQ(usage["cache_creation"]["ephemeral_5m_input_tokens"], 0);
  // OpenAI's details are of what is pinned.
  const Json details = server
                           .post("/v1/responses", R"({"input":"a text of more than one block",
                                 "max_output_tokens":1,"prompt_cache_options":{"ttl":"12h"}})")
                           .json()["usage"]["input_tokens_details"];
  EXPECT_GT(details["cache_write_tokens"], 30);
  EXPECT_FALSE(details.contains("cache_write_tokens_details")) << details;
}

TEST(AnthropicMessages, TheCountShortensAHistoryAsTheAnswerDoes) {
  const TestServer server;
  Json request = {{"messages", Json::array()}};
  for (int turn = 0; turn < 12; ++turn) {
    request["messages"].push_back({{"role", "user"}, {"content", "question"}});
    request["messages"].push_back({{"role", "assistant"}, {"content", "answer"}});
  }
  request["messages"].push_back({{"role", "user"}, {"content", "question"}});
  request["larder"]["history"] = {{"strategy", "rolling_window"}};
  std::vector<int> counts;
  for (const int max_tokens : {0, 10, 100, 150}) {
    request["max_tokens"] = max_tokens;
    const Json usage = server.post("/v1/messages", request.dump()).json()["usage"];
    const Json counted = server.post("/v1/messages/count_tokens", request.dump()).json();
    EXPECT_EQ(counted["input_tokens"], sum_of(usage)) << max_tokens;
    counts.push_back(sum_of(usage));
  }
  EXPECT_LT(counts[3], counts[1]);
  request.erase("max_tokens");  // as one that only fills the cache, which does not say either
  EXPECT_EQ(server.post("/v1/messages/count_tokens", request.dump()).json()["input_tokens"], counts[0]);
}

TEST(AnthropicMessages, WithoutBreakpointsNothingIsWritten) {
  TestServer server;
  const Json usage = server.post("/v1/messages", with(kHello)).json()["usage"];
  EXPECT_EQ(usage["cache_creation_input_tokens"], 0);
  EXPECT_GT(usage["input_tokens"], 20);
}

// Claude Code's system prompt: the first line is another one in each session.
TEST(AnthropicMessages, ASessionReusesThePromptOfTheOneBefore) {
  TestServer server;
  const auto body = [](const char* version, const char* own) {
    return with(kHello + R"(,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1.197.)" + version +
                R"(; cc_entrypoint=sdk-cli;"},{"type":"text","text":"You are a clerk who is brief.",)" +
                R"("cache_control":{"type":"ephemeral"}},{"type":"text","text":"Be kind."}],"larder":{"cache_report":true)" + own + "}");
  };
  const Json first = server.post("/v1/messages", body("1c0", "")).json();
  EXPECT_EQ(first["larder"]["cache"]["normalised"].dump(), R"(["nonce_headers"])");
  EXPECT_GT(first["usage"]["cache_creation_input_tokens"].get<int>(), 0);
  const Json second = server.post("/v1/messages", body("a0e", "")).json();
  const Json& usage = second["usage"];
  EXPECT_EQ(usage["input_tokens"].get<int>() + usage["cache_creation_input_tokens"].get<int>(), 1) << usage;
  EXPECT_GT(usage["cache_read_input_tokens"].get<int>(), 16);
  const Json count = server.post("/v1/messages/count_tokens", body("1ab", "")).json();
  EXPECT_EQ(count["input_tokens"].get<int>(), usage["cache_read_input_tokens"].get<int>() + 1);
  // A system prompt of that line alone is none.
  const auto count_of = [&](const char* system) { return server.post("/v1/messages/count_tokens", with(kHello + system)).json()["input_tokens"]; };
  EXPECT_EQ(count_of(R"(,"system":"x-anthropic-billing-header: cc_version=2.1.197.1c0;")"), count_of(""));
  // Where it is all that there is, it stays as an empty one.
  const auto alone = server.post("/tokenize",
                                 R"({"messages":[{"role":"system","content":"x-anthropic-billing-header: a=1;"}],)"
                                 R"("larder":{"normalise":["nonce_headers"]},"tools":[{"type":"function","function":{"name":"f"}}]})");
  EXPECT_EQ(alone.status, 200) << alone.body;
  // Who wants the line has it.
  const Json kept = server.post("/v1/messages", body("1c0", R"(,"normalise":[])")).json();
  EXPECT_FALSE(kept["larder"]["cache"].contains("normalised"));
  const Json changed = server.post("/v1/messages", body("a0e", R"(,"normalise":[])")).json();
  EXPECT_EQ(changed["larder"]["cache"]["divergence"]["class"], "nonce") << changed;
}

TEST(AnthropicMessages, StopReasons) {
  TestServer server;
  const auto post = [&](const std::string& fields) {
    return server.post("/v1/messages", "{" + kHello + "," + fields + "}").json();
  };
  EXPECT_EQ(post(R"("max_tokens":3,"temperature":0)")["stop_reason"], "max_tokens");
  const Json none = post(R"("max_tokens":0)");
  EXPECT_EQ(none["stop_reason"], "max_tokens");
  EXPECT_EQ(none["usage"]["output_tokens"], 0);
  EXPECT_TRUE(none["content"].empty());
  const Json all = post(R"("max_tokens":30,"temperature":0)");
  const auto text = all["content"][0]["text"].get<std::string>();
  ASSERT_GT(text.size(), 9u);
  const Json stopped = post(R"("max_tokens":30,"temperature":0,"stop_sequences":[)" +
                            Json(text.substr(4, 3)).dump() + "]");
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], text.substr(4, 3));
  EXPECT_LT(stopped["content"][0]["text"].get<std::string>().size(), text.size());
}

TEST(AnthropicMessages, ErrorsHaveTheirOwnShape) {
  ServerConfig config;
  config.api_keys = {"secret"};
  TestServer server(config);
  const std::string key = "x-api-key: secret\r\n";
  const auto expect = [](const TestServer::Answer& answer, int status, const char* type) {
    EXPECT_EQ(answer.status, status) << answer.body;
    const Json body = answer.json();
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], type) << answer.body;
    EXPECT_TRUE(body["error"]["message"].is_string());
    const auto id = body["request_id"].get<std::string>();
    EXPECT_NE(answer.head.find("request-id: " + id), std::string::npos) << answer.head;
  };
  expect(server.post("/v1/messages", with(kHello)), 401, "authentication_error");
  expect(server.post("/v1/messages", with(kHello), "x-api-key: wrong\r\n"), 401,
         "authentication_error");
  EXPECT_EQ(server.post("/v1/messages", with(kHello), key).status, 200);
  EXPECT_EQ(server.post("/v1/messages", with(kHello), "Authorization: Bearer secret\r\n").status,
            200);
  expect(server.post("/v1/messages", "{", key), 400, "invalid_request_error");
  expect(server.post("/v1/messages", R"({"messages":[]})", key), 400, "invalid_request_error");
  expect(server.post("/v1/messages/none", "{}", key), 404, "not_found_error");
  expect(server.get("/v1/messages", key), 405, "invalid_request_error");
  expect(server.post("/v1/messages",
                     R"({"model":"other","max_tokens":1,"messages":[{"role":"user","content":"x"}]})", key),
         404, "not_found_error");
  expect(server.exchange("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + key + "\r\n"), 415,
         "invalid_request_error");
  expect(server.exchange("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
                         "application/json\r\nContent-Length: 99999999\r\n" +
                         key + "\r\n"),
         413, "request_too_large");
}

// Its client sends new messages alone, and all of them once it reads this.
TEST(AnthropicMessages, AThreadIsRefusedByItsOwnCode) {
  TestServer server;
  const auto answer = server.post("/v1/messages", with(kHello + R"(,"thread":{"type":"create"})"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["details"]["error_code"], "thread_unsupported_request");
  EXPECT_EQ(server.post("/v1/messages", with(kHello + R"(,"thread":null)")).status, 200);
  EXPECT_FALSE(server.post("/v1/messages", with("\"messages\":[]")).json()["error"].contains("details"));
}

TEST(AnthropicMessages, TheModelsAreToldAsItsClientsReadThem) {
  TestServer server;
  const Json list = server.get("/v1/models").json();
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(list["first_id"], list["data"][0]["id"]);
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["data"][0]["created_at"], "1970-01-01T00:00:01Z");
}

// Clients compact their history when they read these words.
TEST(AnthropicMessages, APromptTooLongIsToldInTheirWords) {
  TestServer server;
  const std::string text(500, 'a');
  const auto answer =
      server.post("/v1/messages", with(R"("messages":[{"role":"user","content":")" + text + R"("}])"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
  const std::string message = answer.json()["error"]["message"].get<std::string>();
  EXPECT_NE(message.find("prompt is too long: 5"), std::string::npos) << message;
  EXPECT_NE(message.find(" tokens > 239 maximum"), std::string::npos) << message;
  EXPECT_EQ(message.find("truncate_prompt_tokens"), std::string::npos) << message;
}

TEST(AnthropicMessages, ContextThatIsFull) {
  TestServer server;
  for (char question = 'a'; question <= 'z'; ++question) {
    const Json reply = server
                           .post("/v1/messages", fmt::format(R"({{"max_tokens":1000,"temperature":0,
                                 "messages":[{{"role":"user","content":"{}"}}]}})", question))
                           .json();
    if (reply["stop_reason"] == "end_turn") continue;  // the random model ended by itself
    EXPECT_EQ(reply["stop_reason"], "model_context_window_exceeded");
    EXPECT_EQ(sum_of(reply["usage"]) + reply["usage"]["output_tokens"].get<int>(),
              TestServer::kMaxModelLen);
    return;
  }
  FAIL() << "no answer was long enough";
}

// A choice that says the text, in pieces.
std::string stream_of(ReplyWriter& writer, const std::vector<std::string>& pieces) {
  const Tokenizer tokenizer(tiny_vocabulary());
  std::vector<Choice> choices;
  choices.emplace_back(TextStream(tokenizer, {}, false, false));
  std::string out;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i + 1 == pieces.size()) choices[0].finish = FinishReason::kStop;
    writer.delta(choices[0], {.text = pieces[i]}, choices, out);
  }
  writer.end(choices, out);
  return out;
}

std::string whole_of(ReplyWriter& writer, const std::string& text) {
  const Tokenizer tokenizer(tiny_vocabulary());
  std::vector<Choice> choices;
  choices.emplace_back(TextStream(tokenizer, {}, false, false));
  choices[0].text = text;
  choices[0].finish = FinishReason::kStop;
  Choice* shown[] = {&choices[0]};
  return writer.whole(shown, choices);
}

const std::vector<std::string> kCallInPieces = {
    "Let me see.\n<tool", "_call>\n{\"name\": \"f\", ", "\"arguments\": {\"a\": [1]}}\n</tool_call>",
    "\n"};
const std::string kCall =
    "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call>\n";

TEST(AnthropicMessages, CallsAreBlocks) {
  GenerationOptions options;
  options.tool_calls.are_read = true;
  const auto writer = make_messages_writer("m");
  writer->set_options(options);
  std::string shape;
  for (const Event& event : events_of(stream_of(*writer, kCallInPieces))) {
    if (event.name == "content_block_start") {
      shape += "[" + event.data["content_block"]["type"].get<std::string>() +
               std::to_string(event.data["index"].get<int>());
    } else if (event.name == "content_block_delta") {
      const Json& delta = event.data["delta"];
      shape += ":" + (delta.contains("text") ? delta["text"] : delta["partial_json"]).get<std::string>();
    } else if (event.name == "content_block_stop") {
      shape += "]";
    } else if (event.name == "message_delta") {
      shape += event.data["delta"]["stop_reason"].get<std::string>();
    }
  }
  EXPECT_EQ(shape, "[text0:Let me see.][tool_use1:{\"a\":[1]}]tool_use");
  const Json whole = parse_json(whole_of(*writer, kCall), {});
  EXPECT_EQ(whole["content"][0], (Json{{"type", "text"}, {"text", "Let me see."}}));
  EXPECT_EQ(whole["content"][1]["name"], "f");
  EXPECT_EQ(whole["content"][1]["input"], parse_json(R"({"a":[1]})", {}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
}

TEST(ToolCalls, ArgumentsKeepTheirDigitsInEveryApi) {
  GenerationOptions options;
  options.tool_calls.are_read = true;
  const Tokenizer tokenizer(tiny_vocabulary());
  const std::string text =
      R"(<tool_call>{"name": "f", "arguments": {"id": 25000000000000000001}}</tool_call>)";
  for (const auto make : {0, 1, 2}) {
    const auto writer = make == 0   ? make_messages_writer("m")
                        : make == 1 ? make_chat_writer("m", tokenizer)
                                    : make_responses_writer("m", tokenizer, {});
    writer->set_options(options);
    const std::string whole = whole_of(*writer, text);
    const char* shown = make == 0 ? R"({"id":25000000000000000001})" : R"({\"id\":25000000000000000001})";
    EXPECT_NE(whole.find(shown), std::string::npos) << whole;
  }
}

TEST(OpenAiChat, CallsAreToolCalls) {
  GenerationOptions options;
  options.tool_calls.are_read = true;
  const Tokenizer tokenizer(tiny_vocabulary());
  const auto writer = make_chat_writer("m", tokenizer);
  writer->set_options(options);
  const Json whole = parse_json(whole_of(*writer, kCall), {})["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  EXPECT_EQ(whole["message"]["content"], "Let me see.");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"],
            parse_json(R"({"name":"f","arguments":"{\"a\":[1]}"})", {}));
  for (const auto& pieces : {kCallInPieces, std::vector<std::string>{kCall}}) {
    std::string text, reason, calls;
    const std::string stream = stream_of(*writer, pieces);
    for (std::size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; ++at) {
      const Json event = parse_json(stream.substr(at + 6, stream.find('\n', at) - at - 6), {});
      const Json& choice = event["choices"][0];
      if (choice["delta"].contains("content")) text += choice["delta"]["content"].get<std::string>();
      if (choice["delta"].contains("tool_calls")) calls += choice["delta"]["tool_calls"][0]["function"].dump();
      if (!choice["finish_reason"].is_string()) continue;
      reason = choice["finish_reason"].get<std::string>();
      EXPECT_FALSE(choice["delta"].contains("tool_calls")) << "its client would not end the call";
    }
    EXPECT_EQ(text, "Let me see.");
    EXPECT_EQ(calls, R"({"name":"f","arguments":"{\"a\":[1]}"})");
    EXPECT_EQ(reason, "tool_calls");
  }
  options.tool_calls.are_read = false;
  writer->set_options(options);
  EXPECT_EQ(parse_json(whole_of(*writer, kCall), {})["choices"][0]["message"]["content"], kCall);
}

// Clients that asked for one call at a time run one.
TEST(ToolCalls, ComeOneAtATimeWhereThatIsAsked) {
  const std::string two = kCall + "<tool_call>{\"name\": \"twin\"}</tool_call>";
  const Tokenizer tokenizer(tiny_vocabulary());
  for (const bool takes_many : {true, false}) {
    GenerationOptions options;
    options.tool_calls.are_read = true;
    options.tool_calls.takes_many = takes_many;
    const auto has_twin = [&](std::unique_ptr<ReplyWriter> whole, std::unique_ptr<ReplyWriter> stream) {
      whole->set_options(options);
      stream->set_options(options);
      const bool in_whole = whole_of(*whole, two).find("twin") != std::string::npos;
      EXPECT_EQ(stream_of(*stream, {two}).find("twin") != std::string::npos, in_whole);
      return in_whole;
    };
    EXPECT_EQ(has_twin(make_messages_writer("m"), make_messages_writer("m")), takes_many);
    EXPECT_EQ(has_twin(make_chat_writer("m", tokenizer), make_chat_writer("m", tokenizer)),
              takes_many);
    EXPECT_EQ(has_twin(make_responses_writer("m", tokenizer, {}),
                         make_responses_writer("m", tokenizer, {})),
              takes_many);
  }
}

TEST(OpenAiResponses, CallsAreItems) {
  GenerationOptions options;
  options.tool_calls.are_read = true;
  const Tokenizer tokenizer(tiny_vocabulary());
  const auto make = [&] {
    auto writer = make_responses_writer("m", tokenizer, {});
    writer->set_options(options);
    return writer;
  };
  const std::vector<Event> events = events_of(stream_of(*make(), kCallInPieces));
  std::vector<std::string> names;
  std::string arguments;
  for (const Event& event : events) {
    EXPECT_EQ(event.data.at("sequence_number"), names.size());
    names.push_back(event.name.substr(std::string("response.").size()));
    if (event.name == "response.function_call_arguments.done") arguments = event.data.at("arguments");
    const bool is_of_call = event.name.find("function_call") != std::string::npos;
    if (is_of_call) {
      EXPECT_EQ(event.data.at("output_index"), 1);
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "output_item.added", "content_part.added", "output_text.delta",
                       "output_text.done", "content_part.done", "output_item.done",
                       "output_item.added", "function_call_arguments.delta",
                       "function_call_arguments.done", "output_item.done", "completed"}));
  EXPECT_EQ(arguments, R"({"a":[1]})");
  const Json output = parse_json(whole_of(*make(), kCall), {}).at("output");
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0].at("content")[0].at("text"), "Let me see.");
  EXPECT_EQ(output[1].at("type"), "function_call");
  EXPECT_EQ(output[1].at("name"), "f");
  EXPECT_EQ(output[1].at("arguments"), arguments);
  EXPECT_EQ(output[1].at("status"), "completed");
  EXPECT_TRUE(output[1].at("call_id").get<std::string>().starts_with("call_"));
  EXPECT_FALSE(output[1].contains("namespace"));

  ResponseDraft draft;
  draft.tool_names = {{"f", {"n", "search"}}};
  const auto writer = make_responses_writer("m", tokenizer, std::move(draft));
  writer->set_options(options);
  const Json call = parse_json(whole_of(*writer, kCall), {}).at("output")[1];
  EXPECT_EQ(call.at("namespace"), "n");
  EXPECT_EQ(call.at("name"), "search");
}

// The text one token a character, and what of it is shown.
Json response_of(const std::string& text, const std::string& shown, std::size_t tokens_at_once) {
  const Tokenizer tokenizer(tiny_vocabulary());
  ResponseDraft draft;
  draft.wants_logprobs = true;
  const auto writer = make_responses_writer("m", tokenizer, std::move(draft));
  GenerationOptions options;
  options.tool_calls.are_read = true;
  writer->set_options(options);
  std::vector<Choice> choices;
  Choice& choice = choices.emplace_back(TextStream(tokenizer, {}));
  choice.decoder.emplace(tokenizer);
  std::vector<OutputToken> tokens(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    tokens[i].token = tokenizer.encode(text.substr(i, 1), false, false).at(0);
  }
  choice.text = shown;
  choice.tokens = tokens;
  Choice* chosen[] = {&choice};
  if (tokens_at_once == 0) {
    choice.finish = FinishReason::kStop;
    return parse_json(writer->whole(chosen, choices), {});
  }
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += tokens_at_once) {
    const std::size_t end = std::min(at + tokens_at_once, text.size());
    if (end == text.size()) choice.finish = FinishReason::kStop;
    ChoiceDelta delta;
    if (at < shown.size()) delta.text = shown.substr(at, end - at);
    delta.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                        tokens.begin() + static_cast<std::ptrdiff_t>(end));
    writer->delta(choice, std::move(delta), choices, out);
  }
  writer->end(choices, out);
  return events_of(out).back().data["response"];
}

TEST(OpenAiResponses, LogprobsStandBesideTheirText) {
  const auto shape = [](const Json& response) {
    std::string all;
    for (const Json& item : response["output"]) {
      if (item["type"] != "message") {
        all += "(call)";
        continue;
      }
      const Json& part = item["content"][0];
      all += '[' + part["text"].get<std::string>() + ':';
      for (const Json& entry : part["logprobs"]) all += entry["token"].get<std::string>();
      all += ']';
    }
    return all;
  };
  const std::string call = "<tool_call>{\"name\":\"f\"}</tool_call>";
  const std::string text = "One" + call + "two" + call + "three";
  for (const std::size_t tokens_at_once : {0u, 1u, 7u, 1000u}) {
    EXPECT_EQ(shape(response_of(text, text, tokens_at_once)),
              "[One:One](call)[two:two](call)[three:three]");
    const std::string open = "<tool_call>{\"name\":\"f\"}";
    EXPECT_EQ(shape(response_of(open + "<b", open + "<b", tokens_at_once)), "(call)[<b:<b]");
    EXPECT_EQ(shape(response_of("a <tool", "a <tool", tokens_at_once)), "[a <tool:a <tool]");
    EXPECT_EQ(shape(response_of("oneSTOP", "one", tokens_at_once)), "[one:oneSTOP]");
    EXPECT_EQ(shape(response_of("STOP", "", tokens_at_once)), "[:STOP]");
    EXPECT_EQ(shape(response_of(call + "STOP", call, tokens_at_once)), "(call)");
  }
}

// An answer that has no end.
const std::string kEndless =
    R"({"max_tokens":2147483647,"temperature":0,"stream":true,)" + kHello + "}";
constexpr AttentionSpan kWindow{.window = 32};

TEST(AnthropicMessages, AClientThatGoesFreesItsBlocks) {
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = std::size_t{1} << 30;  // it is not dropped for that
  TestServer server(config, TestServer::default_engine(), "", kWindow);
  RawClient client(server.port());
  client.send(TestServer::request("/v1/messages", kEndless));
  EXPECT_NE(client.receive("content_block_delta").find("message_start"), std::string::npos);
  EXPECT_GT(server.engine().stats().kv.num_held, 0);
  client.close();
  EXPECT_TRUE(server.becomes_idle());
  EXPECT_TRUE(eventually([&] {
    return server.get("/metrics").body.find("finished_reason=\"abort\"} 1") != std::string::npos;
  }));
}

TEST(AnthropicMessages, PingsWhileNothingHappens) {
  ServerConfig config;
  config.limits.ping_interval = std::chrono::milliseconds(20);
  config.limits.max_stream_buffer_bytes = std::size_t{1} << 30;  // nobody reads the first stream
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 1;
  TestServer server(config, engine, "", kWindow);
  RawClient running(server.port()), waiting(server.port());
  running.send(TestServer::request("/v1/messages", kEndless));
  running.receive("content_block_delta");
  waiting.send(TestServer::request("/v1/messages", with(kHello + R"(,"stream":true)"),
                                   "Connection: close\r\n"));
  std::string text;
  for (int i = 0; i < 2; ++i) text += waiting.receive("event: ping");
  EXPECT_EQ(text.find("message_start"), std::string::npos) << text;
  running.close();
  const auto events = events_of(text + waiting.receive());
  EXPECT_EQ(events.at(1).name, "ping");
  EXPECT_EQ(events.back().name, "message_stop");
}

}  // namespace
}  // namespace larder
