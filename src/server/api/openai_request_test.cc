#include "server/api/openai_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <string>

#include "base/error.h"
#include "server/api/openai_test_support.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {
namespace {

CompletionRequest completion(const std::string& fields) {
  return parse_completion_request(parse_json("{" + fields + "}", {}), kRules);
}

// An array of so many that are empty.
std::string empty_arrays(int num) {
  std::string text = "[";
  for (int i = 0; i < num; ++i) text += "[],";
  return text + "1]";
}

TEST(OpenAiRequest, ChatDefaults) {
  const ChatRequest request = chat("");
  const SamplingParams& sampling = request.options.sampling;
  EXPECT_EQ(sampling.temperature, 1);
  EXPECT_EQ(sampling.num_logprobs, -1);
  EXPECT_FALSE(request.options.has_max_tokens);
  EXPECT_FALSE(request.options.stream);
  EXPECT_TRUE(request.add_generation_prompt);
  EXPECT_EQ(request.options.n, 1);
}

TEST(OpenAiRequest, ReadsEveryField) {
  const ChatRequest request =
      chat(R"("model":"m","temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,
    "repetition_penalty":1.2,"frequency_penalty":-1,"presence_penalty":2,"logit_bias":{"7":-100,"9":1.5},
    "seed":-2,"stop":["a","bc"],"stop_token_ids":[3,4],"min_tokens":2,"max_completion_tokens":9,
    "ignore_eos":true,"logprobs":true,"top_logprobs":5,"n":3,"stream":true,
    "stream_options":{"include_usage":true,"continuous_usage_stats":true},"priority":-4,
    "prompt_cache_options":{"mode":"implicit","ttl":"30m"},
    "cache_salt":"s","truncate_prompt_tokens":100,"return_token_ids":true,
    "include_stop_str_in_output":true,"skip_special_tokens":false,
    "chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false,
    "response_format":{"type":"text"},"modalities":["text"],"prediction":{"type":"content","content":"x"},"tools":[{"type":"function","function":{"name":"f"}}],
    "unknown_field":[1])");
  const GenerationOptions& options = request.options;
  const SamplingParams& sampling = options.sampling;
  EXPECT_FLOAT_EQ(sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_FLOAT_EQ(sampling.min_p, 0.1f);
  EXPECT_FLOAT_EQ(sampling.repetition_penalty, 1.2f);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty, -1);
  EXPECT_FLOAT_EQ(sampling.presence_penalty, 2);
  ASSERT_EQ(sampling.logit_bias.size(), 2u);
  EXPECT_EQ(sampling.logit_bias[1], (std::pair<TokenId, float>(9, 1.5f)));
  EXPECT_EQ(sampling.seed, UINT64_MAX - 1);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<TokenId>{3, 4}));
  EXPECT_EQ(sampling.min_tokens, 2);
  EXPECT_EQ(sampling.max_tokens, 9);
  EXPECT_TRUE(options.has_max_tokens && sampling.ignore_eos && options.stream);
  EXPECT_EQ(sampling.num_logprobs, 5);
  EXPECT_EQ(options.n, 3);
  EXPECT_TRUE(options.include_usage && options.continuous_usage && options.return_token_ids);
  EXPECT_EQ(options.priority, -4);
  EXPECT_EQ(options.pin_ttl_s, 30 * 60);
  EXPECT_EQ(options.cache_salt, "s");
  EXPECT_EQ(options.truncate_prompt_tokens, 100);
  EXPECT_TRUE(options.include_stop && !options.skip_special_tokens);
  EXPECT_FALSE(request.add_generation_prompt);
  EXPECT_EQ(request.tools.size(), 1u);
  EXPECT_EQ(request.template_kwargs["enable_thinking"], false);
}

TEST(OpenAiRequest, TopPOfNothingLeavesTheLikeliestToken) {
  const SamplingParams sampling = chat(R"("top_p":0,"top_k":40)").options.sampling;
  EXPECT_EQ(sampling.top_k, 1);
  EXPECT_EQ(sampling.top_p, 1);
}

// Of vLLM and llama.cpp; their defaults are what is done here.
TEST(OpenAiRequest, FieldsOfOtherServersMayChangeNothing) {
  (void)chat(R"("allowed_token_ids":[],"bad_words":null,"repeat_penalty":1.0,"n_predict":-1,"prompt_logprobs":null,
    "length_penalty":1,"typical_p":1,"mirostat":0,"dry_multiplier":0,"xtc_probability":0,"dynatemp_range":0,
    "top_n_sigma":-1,"thinking_token_budget":null,"thinking_budget_tokens":-1,"reasoning_budget":-1,
    "reasoning_budget_tokens":-1,"lora":[],"reasoning_format":"auto","include_reasoning":true,"chat_template":null,"documents":[],"echo":false,
    "functions":[],"function_call":"none","modalities":[])");
  (void)chat(R"("top_n_sigma":0)");
}

TEST(OpenAiRequest, NullIsAbsentAndWholeFloatsAreIntegers) {
  const ChatRequest request =
      chat(R"("max_tokens":16.0,"temperature":null,"stop":null,"n":null,"seed":null)");
  EXPECT_EQ(request.options.sampling.max_tokens, 16);
  EXPECT_EQ(request.options.sampling.temperature, 1);
  EXPECT_FALSE(request.options.sampling.seed.has_value());
}

TEST(OpenAiRequest, ASeedOfMinusOneIsNone) {
  EXPECT_FALSE(chat(R"("seed":-1)").options.sampling.seed.has_value());
  EXPECT_FALSE(completion(R"("prompt":"a","seed":-1)").options.sampling.seed.has_value());
  EXPECT_EQ(chat(R"("seed":0)").options.sampling.seed, 0u);
}

// As llama.cpp's clients ask for as many as there is room for.
TEST(OpenAiRequest, MaxTokensOfMinusOneAreLeftOut) {
  EXPECT_FALSE(chat(R"("max_tokens":-1,"max_completion_tokens":-1)").options.has_max_tokens);
  EXPECT_EQ(chat(R"("max_tokens":5,"max_completion_tokens":-1)").options.sampling.max_tokens, 5);
  EXPECT_EQ(completion(R"("prompt":"a","max_tokens":-1)").options.sampling.max_tokens,
            completion(R"("prompt":"a")").options.sampling.max_tokens);
}

// Each line: a bad field and the param that its error must name.
TEST(OpenAiRequest, ErrorsNameTheField) {
  const struct {
    const char* fields;
    const char* param;
  } cases[] = {
      {R"("chat_template":"{{ messages }}")", "chat_template"},
      {R"("documents":[{"text":"Paris is a city."}])", "documents"},
      {R"("thinking_token_budget":10)", "thinking_token_budget"},
      {R"("thinking_budget_tokens":0)", "thinking_budget_tokens"},
      {R"("reasoning_budget":0)", "reasoning_budget"},
      {R"("reasoning_budget_tokens":10)", "reasoning_budget_tokens"},
      {R"("lora":[{"id":0,"scale":0.5}])", "lora"},
      {R"("reasoning_format":"deepseek-legacy")", "reasoning_format"},
      {R"("reasoning_format":"none","include_reasoning":false)", "include_reasoning"},
      {R"("top_n_sigma":1)", "top_n_sigma"},
      {R"("echo":true)", "echo"},
      {R"("model":5)", "model"},
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":2.1)", "temperature"},
      {R"("top_p":-0.1)", "top_p"},
      {R"("top_p":1.1)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("top_k":2147483648)", "top_k"},
      {R"("min_p":-1)", "min_p"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("n":0)", "n"},
      {R"("n":2147483648)", "n"},
      {R"("n":129)", "n"},
      {R"("n":18446744073709551617)", "n"},
      {R"("temperature":18446744073709551617)", "temperature"},
      {R"("logit_bias":{"1":18446744073709551617})", "logit_bias"},
      {R"("n":true)", "n"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-2)", "max_tokens"},
      {R"("max_completion_tokens":0)", "max_completion_tokens"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("min_tokens":513)", "min_tokens"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
      {R"("truncate_prompt_tokens":-2)", "truncate_prompt_tokens"},
      {R"("seed":"x")", "seed"},
      {R"("seed":9223372036854775808)", "seed"},
      {R"("stop":5)", "stop"},
      {R"("stop":["a",5])", "stop"},
      {R"("stop_token_ids":[100])", "stop_token_ids"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stop_token_ids":[18446744073709551615])", "stop_token_ids"},
      {R"("stop_token_ids":[1.5])", "stop_token_ids"},
      {R"("logit_bias":{"100":1})", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":{"1":"a"})", "logit_bias"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":5)", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("top_logprobs":3)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("logprobs":5)", "logprobs"},
      {R"("response_format":{"type":"xml"})", "response_format.type"},
      {R"("response_format":"text")", "response_format"},
      {R"("response_format":{"type":"json_schema"})", "response_format.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":5})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":5}})", "response_format.json_schema.schema"},
      {R"("guided_json":"{")", "guided_json"},
      {R"("guided_json":[1])", "guided_json"},
      {R"("guided_regex":5)", "guided_regex"},
      {R"("guided_choice":[])", "guided_choice"},
      {R"("guided_choice":["a",1])", "guided_choice"},
      {R"("guided_grammar":"")", "guided_grammar"},
      {R"("guided_regex":"a","guided_choice":["a"])", "guided_choice"},
      {R"("structured_outputs":5)", "structured_outputs"},
      {R"("structured_outputs":{"structural_tag":"{}"})", "structured_outputs.structural_tag"},
      {R"("structured_outputs":{"choice":"a"})", "structured_outputs.choice"},
      {R"("grammar":{})", "grammar"},
      {R"("json_schema":5)", "json_schema"},
      {R"("use_beam_search":true)", "use_beam_search"},
      {R"("allowed_token_ids":[2])", "allowed_token_ids"},
      {R"("bad_words":[" the"])", "bad_words"},
      {R"("repeat_penalty":1.1)", "repeat_penalty"},
      {R"("n_predict":2)", "n_predict"},
      {R"("prompt_logprobs":1)", "prompt_logprobs"},
      {R"("logit_bias":{"01":1})", "logit_bias"},
      {R"("functions":[{"name":"f"}])", "functions"},
      {R"("functions":{})", "functions"},
      {R"("function_call":"auto")", "function_call"},
      {R"("web_search_options":{})", "web_search_options"},
      {R"("audio":{"voice":"alloy"})", "audio"},
      {R"("moderation":{})", "moderation"},
      {R"("modalities":["text","audio"])", "modalities"},
      {R"("modalities":"text")", "modalities"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs"},
      {R"("continue_final_message":true,"add_generation_prompt":true)", "continue_final_message"},
      {R"("priority":2147483648)", "priority"},
      {R"("cache_salt":5)", "cache_salt"},
      {R"("prompt_cache_options":"30m")", "prompt_cache_options"},
      {R"("prompt_cache_options":{"ttl":"12h"})", "prompt_cache_options.ttl"},
      {R"("prompt_cache_options":{"ttl":1800})", "prompt_cache_options.ttl"},
      {R"("prompt_cache_options":{"mode":"Implicit"})", "prompt_cache_options.mode"},
      {R"("prompt_cache_retention":"1h")", "prompt_cache_retention"},
  };
  for (const auto& [fields, param] : cases) {
    EXPECT_EQ(param_of([&] { chat(fields); }), param) << fields;
  }
}

TEST(OpenAiRequest, HowLongThePromptIsKept) {
  const auto ttl_s = [](const char* fields) { return chat(fields).options.pin_ttl_s; };
  EXPECT_EQ(ttl_s(R"("n":1)"), 0);
  EXPECT_EQ(ttl_s(R"("prompt_cache_options":{"ttl":"30m"})"), 1800);
  EXPECT_EQ(ttl_s(R"("prompt_cache_options":{"mode":"implicit"})"), 0);
  EXPECT_EQ(ttl_s(R"("prompt_cache_options":{"mode":"explicit","ttl":"30m"})"), 0);
  EXPECT_EQ(ttl_s(R"("prompt_cache_retention":"in_memory")"), 0);
  EXPECT_EQ(ttl_s(R"("prompt_cache_retention":"24h")"), 86400);
  EXPECT_EQ(ttl_s(R"("prompt_cache_retention":"24h","prompt_cache_options":{"ttl":"30m"})"), 86400);
  EXPECT_EQ(ttl_s(R"("prompt_cache_retention":"24h","prompt_cache_options":{"mode":"implicit"})"), 86400);
  EXPECT_EQ(ttl_s(R"("prompt_cache_retention":"24h","prompt_cache_options":{"mode":"explicit"})"), 0);
}

TEST(OpenAiRequest, TemplatesGetABoundedNumberOfNames) {
  const auto with = [](int num) {
    Json kwargs = Json::object();
    for (int i = 0; i < num; ++i) kwargs[std::to_string(i)] = i;
    return chat("\"chat_template_kwargs\":" + kwargs.dump());
  };
  EXPECT_EQ(with(256).template_kwargs.size(), 256u);
  EXPECT_EQ(param_of([&] { with(257); }), "chat_template_kwargs");
}

TEST(OpenAiRequest, TemplatesGetABoundedNumberOfBytes) {
  const auto with = [](int num) { return chat("\"chat_template_kwargs\":{\"a\":" + empty_arrays(num) + "}"); };
  EXPECT_EQ(with(1000).template_kwargs["a"].size(), 1001u);
  EXPECT_EQ(param_of([&] { with(30'000); }), "chat_template_kwargs");
}

TEST(OpenAiRequest, StopListsAreBounded) {
  EXPECT_EQ(param_of([] { chat("\"stop\":\"" + std::string(1 << 20, 'x') + "\""); }), "stop");
  std::string many = "\"stop\":[\"a\"";
  for (int i = 0; i < 16; ++i) many += ",\"a\"";
  EXPECT_EQ(param_of([&] { chat(many + "]"); }), "stop");
  EXPECT_TRUE(chat(R"("stop":[""])").options.stop.empty());
  const auto of_kilobytes = [](int num, const std::string& end) {
    Json stop = Json::array({end});
    for (int i = 0; i < num; ++i) stop.push_back(std::string(1024, static_cast<char>('a' + i)));
    return "\"stop\":" + stop.dump();
  };
  EXPECT_EQ(chat(of_kilobytes(4, "")).options.stop.size(), 4u);
  EXPECT_EQ(param_of([&] { chat(of_kilobytes(4, "x")); }), "stop");
}

// Each drawn token is looked for in them.
TEST(OpenAiRequest, ListsOfTokensAreBounded) {
  std::string ids = "0", biases = "\"0\":1";
  for (int token = 1; token < 2000; ++token) {
    ids += fmt::format(",{}", token);
    biases += fmt::format(",\"{}\":1", token);
  }
  const RequestRules rules{.limits = kLimits, .vocab_size = 2000, .max_model_len = 512};
  const auto sampling_of = [&](const std::string& fields) {
    return parse_completion_request(parse_json("{\"prompt\":\"a\"," + fields + "}", {}), rules).options.sampling;
  };
  EXPECT_EQ(param_of([&] { sampling_of("\"stop_token_ids\":[" + ids + "]"); }), "stop_token_ids");
  EXPECT_EQ(param_of([&] { sampling_of("\"logit_bias\":{" + biases + "}"); }), "logit_bias");
  std::string often = "\"stop_token_ids\":[7";
  for (int i = 0; i < 2000; ++i) often += ",3";
  EXPECT_EQ(sampling_of(often + "]").stop_token_ids, (std::vector<TokenId>{3, 7}));
}

TEST(OpenAiRequest, MessagesAreChecked) {
  const auto parse = [](const std::string& messages) {
    return parse_chat_request(parse_json("{\"messages\":" + messages + "}", {}), kRules);
  };
  const auto param = [&](const std::string& messages) {
    return param_of([&] { parse(messages); });
  };
  EXPECT_EQ(param_of([] { parse_chat_request(parse_json("{}", {}), kRules); }), "messages");
  EXPECT_EQ(param("[]"), "messages");
  EXPECT_EQ(param("\"hi\""), "messages");
  EXPECT_EQ(param("[1]"), "messages[0]");
  EXPECT_EQ(param(R"([{"content":"a"}])"), "messages[0].role");
  EXPECT_EQ(param(R"([{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(param(R"([{"role":"user","content":"a"},{"role":"sytem","content":"b"}])"), "messages[1].role");
  EXPECT_EQ(param(R"([{"role":"user","content":5}])"), "messages[0].content");
  // Fault 27: nothing is fetched, from wherever.
  for (const char* url : {"file:///x", "http://169.254.169.254/latest/meta-data/", "http://[fe80::1]/x", "https://localhost/x"}) {
    EXPECT_EQ(param(fmt::format(R"([{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{}"}}}}]}}])", url)),
              "messages[0].content[0].type") << url;
  }
  EXPECT_EQ(param(R"([{"role":"user","content":[{"type":"text"}]}])"),
            "messages[0].content[0].text");

  const ChatRequest request = parse(
      R"([{"role":"developer","content":"d"},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{\"x\":1}"}}]},
          {"role":"tool","content":"r"}])");
  EXPECT_EQ(request.messages[0].json["role"], "system");
  EXPECT_EQ(request.messages[1].json["content"], "a\nb");
  EXPECT_EQ(request.messages[2].json["tool_calls"][0]["function"]["arguments"]["x"], 1);
}

// As openai's model_dump() writes an answer: with null, or an empty list, for what there is not.
TEST(OpenAiRequest, AbsentMembersOfAMessageAreHiddenFromTemplates) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/llama3.2.jinja");
  const ChatTemplate llama(std::string(std::istreambuf_iterator<char>(file), {}));
  for (const char* calls : {"null", "[]"}) {
    const ChatRequest request = parse_chat_request(
        parse_json(R"({"messages":[{"role":"user","content":"hi","name":null},
            {"role":"assistant","content":"Hello.","refusal":null,"annotations":[],"audio":null,
             "function_call":null,"tool_calls":)" + std::string(calls) + R"(},
            {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}]})", {}),
        kRules);
    EXPECT_EQ(dump_json(request.messages[0].json), R"({"role":"user","content":"hi"})");
    EXPECT_EQ(dump_json(request.messages[1].json),
              R"({"role":"assistant","content":"Hello.","annotations":[]})");
    EXPECT_TRUE(request.messages[2].json["content"].is_null());
    TemplateInput input;
    input.messages = {request.messages[0], request.messages[1]};
    EXPECT_NE(llama.render(input).text.find("assistant<|end_header_id|>\n\nHello.<|eot_id|>"),
              std::string::npos);
  }
}

TEST(OpenAiRequest, AbsentMembersTakeLinearTime) {
  std::string body = R"({"messages":[{"role":"user","content":"hi")";
  for (int i = 0; i < 200'000; ++i) body += fmt::format(R"(,"a{}":null)", i);
  const Json json = parse_json(body + "}]}", {});
  const auto begin = std::chrono::steady_clock::now();
  const ChatRequest request = parse_chat_request(json, kRules);
  // Erased one by one they take minutes.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(dump_json(request.messages[0].json), R"({"role":"user","content":"hi"})");
}

TEST(OpenAiRequest, ReadsWhatTheAnswerMayBe) {
  using Kind = AnswerFormat::Kind;
  const auto format = [](const char* fields) { return chat(fields).options.format; };
  EXPECT_TRUE(format("").is_text());
  EXPECT_TRUE(format(R"("response_format":{"type":"text"},"guided_json":null,"structured_outputs":{})").is_text());
  EXPECT_TRUE(format(R"("grammar":"")").is_text());
  EXPECT_EQ(format(R"("grammar":"","guided_regex":"a+")").source, "a+");
  const Json schema = {{"type", "object"}};
  for (
      const char* fields :
      {R"("response_format":{"type":"json_object"})",
       R"("response_format":{"type":"json_object","schema":{"type":"object"}})",
       R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object"}}})",
       R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})",
       R"("response_format":{"type":"json_schema","schema":{"type":"object"}})", R"("guided_json":{"type":"object"})",
       R"("guided_json":"{\"type\":\"object\"}")", R"("json_schema":{"type":"object"})",
       R"("structured_outputs":{"json":{"type":"object"}})", R"("structured_outputs":{"json_object":true})"}) {
    EXPECT_EQ(format(fields).kind, Kind::kSchema) << fields;
    EXPECT_EQ(format(fields).schema, schema) << fields;
  }
  EXPECT_EQ(format(R"("structured_outputs":{"json":{}})").field, "structured_outputs.json");
  EXPECT_EQ(format(R"("guided_regex":"a+","structured_outputs":{"regex":"a+"})").source, "a+");  // as guidance sends it
  EXPECT_EQ(format(R"("guided_grammar":"root ::= \"a\"")").kind, Kind::kGrammar);
  EXPECT_EQ(format(R"("grammar":"root ::= \"a\"")").kind, Kind::kGrammar);
  EXPECT_EQ(format(R"("structured_outputs":{"choice":["a","b"]})").choices, (std::vector<std::string>{"a", "b"}));
}

TEST(OpenAiRequest, PromptsComeInFourShapes) {
  EXPECT_EQ(std::get<std::string>(completion(R"("prompt":"abc")").prompts.at(0)), "abc");
  EXPECT_EQ(completion(R"("prompt":["a","b"])").prompts.size(), 2u);
  EXPECT_EQ(std::get<std::vector<TokenId>>(completion(R"("prompt":[1,2])").prompts.at(0)),
            (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(completion(R"("prompt":[[1,2],[3]])").prompts.size(), 2u);
  for (const char* prompt :
       {R"("x":1)", R"("prompt":[])", R"("prompt":5)", R"("prompt":{})", R"("prompt":[1,"a"])",
        R"("prompt":[100])", R"("prompt":[-1])", R"("prompt":[1.5])"}) {
    EXPECT_EQ(param_of([&] { completion(prompt); }), "prompt") << prompt;
  }
  EXPECT_EQ(param_of([] { completion(R"("prompt":[[1],[200]])"); }), "prompt[1]");
  EXPECT_EQ(param_of([] { completion(R"("prompt":["a","b"],"n":128,"best_of":128,"x":1)"); }), "");
  EXPECT_EQ(param_of([] { completion(R"("prompt":["a","b","c"],"n":128)"); }), "prompt");
}

TEST(OpenAiRequest, CompletionsSpecials) {
  EXPECT_EQ(completion(R"("prompt":"a")").options.sampling.max_tokens, 16);
  EXPECT_EQ(param_of([] { completion(R"("prompt":"a","max_tokens":0)"); }), "max_tokens");
  EXPECT_EQ(completion(R"("prompt":"a","max_tokens":0,"echo":true)").options.sampling.max_tokens,
            0);
  EXPECT_EQ(param_of([] { completion(R"("prompt":"a","suffix":"b")"); }), "suffix");
  EXPECT_EQ(param_of([] { completion(R"("prompt":"a","chat_template":"b")"); }), "chat_template");
  EXPECT_EQ(param_of([] { completion(R"("prompt":"a","best_of":2,"n":3)"); }), "best_of");
  EXPECT_EQ(param_of([] { completion(R"("prompt":"a","best_of":2,"stream":true)"); }), "best_of");
  EXPECT_EQ(completion(R"("prompt":"a","best_of":3)").options.sampling.num_logprobs, -1);
}

// As lm-evaluation-harness asks for the likelihood of a continuation.
TEST(OpenAiRequest, ScoringAPromptCountsTheEndTokenAsOne) {
  const CompletionRequest request = completion(
      R"("prompt":[[1,2,3]],"temperature":0,"max_tokens":1,"logprobs":1,"seed":1234,"echo":true)");
  EXPECT_EQ(request.options.sampling.num_prompt_logprobs, 1);
  EXPECT_EQ(request.options.sampling.num_logprobs, 1);
  EXPECT_TRUE(request.options.sampling.ignore_eos);
  EXPECT_FALSE(completion(R"("prompt":[[1,2,3]],"max_tokens":1)").options.sampling.ignore_eos);
  // A form says when the answer ends, and is refused beside what says otherwise.
  const CompletionRequest formed =
      completion(R"("prompt":"a","max_tokens":1,"logprobs":1,"echo":true,"guided_regex":"a+")");
  EXPECT_EQ(formed.options.sampling.num_prompt_logprobs, 1);
  EXPECT_FALSE(formed.options.sampling.ignore_eos);
}

}  // namespace
}  // namespace larder
