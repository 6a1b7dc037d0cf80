// Pairs of prompts of which the second is the first one changed in a known way: the ledger must find
// the first, name the first different token and the message it belongs to, and say what was done.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "engine/engine_test_support.h"
#include "model/gguf.h"
#include "model/vocabulary.h"
#include "server/chat/prompt.h"
#include "server/report/cache_log.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

// Words, ids and times by a fixed seed.
class Writer {
 public:
  explicit Writer(std::uint32_t seed) : random_(seed) {}

  int below(int most) { return static_cast<int>(random_() % static_cast<unsigned>(most)); }
  std::string pick(const std::vector<std::string>& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }
  std::string words(int count) {
    static const std::vector<std::string> kWords = {
        "harvest", "river",  "the",     "of",       "granary", "seldom", "copper", "and",   "winter",
        "measure", "a",      "lantern", "carried",  "under",   "before", "market", "quiet", "seven",
        "bridge",  "letter", "stone",   "remember", "with",    "apples", "engine", "north", "paper",
        "answer",  "garden", "slowly",  "counted",  "window",  "salt",   "road",   "to",    "in"};
    std::string text;
    for (int i = 0; i < count; ++i) text += (i > 0 ? " " : "") + pick(kWords);
    return text + ".";
  }
  std::string digits(const char* alphabet, int count) {
    const std::string from = alphabet;
    std::string text;
    for (int i = 0; i < count; ++i)
      text += from[static_cast<std::size_t>(below(static_cast<int>(from.size())))];
    return text;
  }
  std::string hex(int count) { return digits("0123456789abcdef", count); }
  std::string uuid() {
    return hex(8) + "-" + hex(4) + "-4" + hex(3) + "-a" + hex(3) + "-" + hex(12);
  }
  std::string timestamp(int style) {
    static const std::vector<std::string> kMonths = {"January", "March", "July", "October"};
    static const std::vector<std::string> kDays = {"Monday", "Tuesday", "Friday", "Sunday"};
    const int year = 2024 + below(3), month = 1 + below(12), day = 1 + below(28);
    const int hour = below(24), minute = below(60), second = below(60);
    switch (style % 6) {
      case 0:
        return fmt::format("{}-{:02}-{:02}T{:02}:{:02}:{:02}Z", year, month, day, hour, minute, second);
      case 1:
        return fmt::format("{}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}", year, month, day, hour, minute,
                           second, below(1000));
      case 2:
        return fmt::format("{}, {} {}, {} at {}:{:02} {}", pick(kDays), pick(kMonths), day, year,
                           1 + below(12), minute, below(2) ? "AM" : "PM");
      case 3:
        return fmt::format("{}/{}/{} {:02}:{:02}", month, day, year, hour, minute);
      case 4:
        return fmt::format("{}", 1700000000 + below(90000000));
      default:
        return fmt::format("{} {} {}, {:02}:{:02}:{:02} UTC", day, pick(kMonths), year, hour, minute,
                           second);
    }
  }
  Json object() {
    Json json = Json::object();
    const int count = 3 + below(4);
    for (int i = 0; i < count; ++i) json["k" + hex(3) + std::to_string(i)] = below(1000);
    return json;
  }
  Json tool(int index) {
    Json properties = Json::object();
    for (int i = 0; i < 3; ++i)
      properties["p" + hex(3)] = {{"type", "string"}, {"description", words(5)}};
    return {{"type", "function"},
            {"function",
             {{"name", fmt::format("tool_{}_{}", index, hex(3))},
              {"description", words(8)},
              {"parameters", {{"type", "object"}, {"properties", properties}}}}}};
  }

 private:
  std::mt19937 random_;
};

// A conversation as a client would send it, and what was generated at its end.
struct Conversation {
  Json messages = Json::array();
  Json tools;
  std::string answer;

  void add(const char* role, const std::string& content) {
    messages.push_back({{"role", role}, {"content", content}});
  }
};

Conversation make_conversation(Writer& writer, int num_turns) {
  Conversation made;
  made.add("system", "You are a helpful clerk. " + writer.words(20 + writer.below(60)));
  for (int turn = 0; turn < num_turns; ++turn) {
    made.add("user", writer.words(15 + writer.below(40)));
    if (turn + 1 < num_turns) made.add("assistant", writer.words(15 + writer.below(40)));
  }
  made.answer = writer.words(20 + writer.below(20));
  return made;
}

// The next turn of the conversation: what came before, the answer, a new question.
Conversation next_turn(Conversation conversation, Writer& writer) {
  conversation.add("assistant", conversation.answer);
  conversation.add("user", writer.words(12));
  return conversation;
}

struct Pair {
  Conversation first, second;
  std::string kind;   // of the divergence; "" = none
  int message = 0;    // that differs first
  MissReason reason = MissReason::kDiverged;
  // How the first one's answer was generated: as the tokenizer writes it, or letter by letter.
  bool is_spelt_out = false;
};

std::string& content(Conversation& conversation, std::size_t message) {
  return conversation.messages[message]["content"].get_ref<std::string&>();
}

Json reordered(const Json& object) {
  Json turned = Json::object();
  for (auto item = object.rbegin(); item != object.rend(); ++item) turned[item.key()] = item.value();
  return turned;
}

// A sentence that holds something which changes, at the head of the system prompt, at its end or in
// the first question.
Pair with_moving_part(Writer& writer, const std::string& kind, const std::string& before,
                      const std::string& after) {
  Pair pair;
  pair.kind = kind;
  pair.first = make_conversation(writer, 1 + writer.below(4));
  pair.second = writer.below(2) ? pair.first : next_turn(pair.first, writer);
  pair.message = writer.below(2);
  const bool at_head = writer.below(2) != 0;
  for (auto* side : {&pair.first, &pair.second}) {
    std::string& text = content(*side, static_cast<std::size_t>(pair.message));
    const std::string& part = side == &pair.first ? before : after;
    text = at_head ? part + "\n" + text : text + "\n" + part;
  }
  return pair;
}

Pair timestamps(Writer& writer) {
  const int style = writer.below(6);
  const std::string before = writer.timestamp(style);
  std::string after = before;
  while (after == before) after = writer.timestamp(style);
  return with_moving_part(writer, "timestamp", "The time is " + before, "The time is " + after);
}

Pair uuids(Writer& writer) {
  return with_moving_part(writer, "nonce", "Session " + writer.uuid() + " begins.",
                          "Session " + writer.uuid() + " begins.");
}

Pair nonces(Writer& writer) {
  const int style = writer.below(4);
  const auto nonce = [&]() -> std::string {
    switch (style) {
      case 0:
        return "x-anthropic-billing-header: cc_version=2.0.1; cch=" + writer.hex(5) + ";";
      case 1:
        return "request_id=" + writer.digits("abcdefghijklmnopqrstuvwxyz0123456789", 14);
      case 2:
        return "Trace " + writer.hex(16) + ".";
      default:
        return "Ticket #" + std::to_string(100000 + writer.below(900000)) + ".";
    }
  };
  const std::string before = nonce();
  return with_moving_part(writer, "nonce", before, nonce());
}

Pair reordered_keys(Writer& writer) {
  const Json object = writer.object();
  const bool is_pretty = writer.below(2) != 0;
  const auto dump = [&](const Json& json) { return json.dump(is_pretty ? 2 : -1); };
  return with_moving_part(writer, "reordered_json_keys", "Record: " + dump(object),
                          "Record: " + dump(reordered(object)));
}

Pair whitespace(Writer& writer) {
  const std::string left = writer.words(8), right = writer.words(8);
  static const std::vector<std::string> kGaps = {"\n", "\n\n", "  ", "\t", " \n"};
  const std::string before = writer.pick(kGaps);
  std::string after = before;
  while (after == before) after = writer.pick(kGaps);
  return with_moving_part(writer, "whitespace", left + before + right, left + after + right);
}

Pair tools(Writer& writer, bool only_keys) {
  Pair pair;
  pair.kind = only_keys ? "reordered_json_keys" : "changed_tools";
  pair.message = -2;  // wherever the template prints them
  pair.first = make_conversation(writer, 1 + writer.below(3));
  pair.first.tools = Json::array();
  for (int i = 0; i < 4; ++i) pair.first.tools.push_back(writer.tool(i));
  pair.second = next_turn(pair.first, writer);
  Json& changed = pair.second.tools;
  if (only_keys) {
    Json& function = changed[static_cast<std::size_t>(writer.below(4))]["function"];
    function["parameters"]["properties"] = reordered(function["parameters"]["properties"]);
  } else {
    switch (writer.below(3)) {
      case 0:
        changed.erase(static_cast<std::size_t>(writer.below(4)));
        break;
      case 1:
        changed.insert(changed.begin() + writer.below(4), writer.tool(9));
        break;
      default:
        std::swap(changed[0], changed[3]);
    }
  }
  return pair;
}

Pair changed_system_prompt(Writer& writer) {
  Pair pair;
  pair.kind = "changed_system_prompt";
  pair.first = make_conversation(writer, 2 + writer.below(3));
  pair.second = next_turn(pair.first, writer);
  std::string& text = content(pair.second, 0);
  if (writer.below(2)) {
    text += " Answer in one sentence, " + writer.words(6);
  } else {
    text = "You are a stern critic who likes few words. " + writer.words(30);
  }
  return pair;
}

Pair edited_history(Writer& writer) {
  Pair pair;
  pair.kind = "edited_history";
  pair.first = make_conversation(writer, 3 + writer.below(3));
  pair.second = next_turn(pair.first, writer);
  pair.message = 1 + writer.below(static_cast<int>(pair.first.messages.size()) - 2);
  content(pair.second, static_cast<std::size_t>(pair.message)) =
      "Instead of that: " + writer.words(10 + writer.below(20));
  return pair;
}

Pair truncated_history(Writer& writer) {
  Pair pair;
  pair.kind = "truncated_history";
  pair.first = make_conversation(writer, 4 + writer.below(4));
  pair.second = next_turn(pair.first, writer);
  pair.message = 1;  // the first after the system prompt is another one now
  const int num_dropped = 2 * (1 + writer.below(2));
  auto& messages = pair.second.messages;
  messages.erase(messages.begin() + 1, messages.begin() + 1 + num_dropped);
  return pair;
}

Pair rerendered_thinking(Writer& writer) {
  Pair pair;
  pair.kind = "rerendered_thinking";
  pair.first = make_conversation(writer, 2 + writer.below(2));
  const std::string answer = pair.first.answer;
  pair.first.answer = "<think>\n" + writer.words(10 + writer.below(150)) + "\n</think>\n\n" + answer;
  pair.message = static_cast<int>(pair.first.messages.size());
  pair.second = pair.first;
  pair.second.answer = answer;
  pair.second = next_turn(pair.second, writer);
  return pair;
}

Pair retokenised(Writer& writer) {
  Pair pair;
  pair.kind = "retokenised_generation";
  pair.first = make_conversation(writer, 1 + writer.below(3));
  pair.message = static_cast<int>(pair.first.messages.size());
  pair.second = next_turn(pair.first, writer);
  pair.is_spelt_out = true;
  return pair;
}

Pair next_question(Writer& writer) {
  Pair pair;
  pair.reason = MissReason::kNeverSeen;
  pair.first = make_conversation(writer, 1 + writer.below(4));
  pair.second = next_turn(pair.first, writer);
  return pair;
}

Pair other_conversation(Writer& writer) {
  Pair pair;
  pair.reason = MissReason::kNeverSeen;
  pair.first = make_conversation(writer, 2);
  pair.second = make_conversation(writer, 2);
  // The same application: only what the user says is new.
  pair.second.messages[0] = pair.first.messages[0];
  return pair;
}

Pair same_again(Writer& writer, MissReason reason) {
  Pair pair;
  pair.reason = reason;
  pair.first = make_conversation(writer, 1 + writer.below(4));
  pair.second = pair.first;
  return pair;
}

struct Maker {
  const char* name;
  std::function<Pair(Writer&)> make;
};

const std::vector<Maker>& makers() {
  static const std::vector<Maker> kMakers = {
      {"timestamp", timestamps},
      {"uuid", uuids},
      {"nonce", nonces},
      {"reordered keys", reordered_keys},
      {"whitespace", whitespace},
      {"tools", [](Writer& writer) { return tools(writer, false); }},
      {"keys of tools", [](Writer& writer) { return tools(writer, true); }},
      {"system prompt", changed_system_prompt},
      {"edited history", edited_history},
      {"truncated history", truncated_history},
      {"thinking", rerendered_thinking},
      {"retokenised", retokenised},
      {"next question", next_question},
      {"other conversation", other_conversation},
      {"evicted", [](Writer& writer) { return same_again(writer, MissReason::kEvicted); }},
      {"other salt", [](Writer& writer) { return same_again(writer, MissReason::kOtherSalt); }},
  };
  return kMakers;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A tokenizer of a real model and a published template; the engine behind is a tiny one that never
// runs.
struct Bench {
  Bench(const char* model_path, const std::string& template_name)
      : file(model_path),
        tokenizer(read_vocabulary(GgufFile(file.bytes()))),
        chat_template(read_text(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/" +
                                template_name)),
        tiny("tiny_llama"),
        storage(tiny.layout, 20),
        transformer(tiny.config, tiny.weights, tiny.layout, select_kernels(), tiny.pool,
                    {.max_batch_tokens = 64, .max_logit_rows = 8, .max_context_len = 128}),
        engine({.num_blocks = 20, .max_model_len = 128, .max_batch_tokens = 64}, transformer,
               storage, tiny.layout, {}, clock),
        model{.name = "test",
              .aliases = {},
              .tokenizer = tokenizer,
              .chat_template = chat_template,
              .engine = engine,
              .max_model_len = 100000,
              .metadata = {}},
        metrics("test", 100000),
        log(tokenizer, metrics, {}, {.max_ledger_bytes = std::size_t{256} << 20}) {}

  PreparedPrompt prepare(const Conversation& conversation) const {
    ChatRequest request;
    request.messages = messages_of(conversation.messages);
    request.tools = conversation.tools;
    return encode_chat(request, model);
  }

  // The answer's tokens: the tokenizer's own, or one for each letter.
  Tokens generated(const Pair& pair) const {
    const std::string& text = pair.first.answer;
    if (!pair.is_spelt_out) return tokenizer.encode(text, false, false);
    Tokens tokens;
    const auto begin = text.find(' ');
    for (const TokenId token : tokenizer.encode(text.substr(0, begin), false, false))
      tokens.push_back(token);
    for (const char letter : text.substr(begin)) {
      const auto found = tokenizer.find(letter == ' ' ? space() : std::string(1, letter));
      EXPECT_TRUE(found);
      tokens.push_back(*found);
    }
    return tokens;
  }
  std::string space() const { return tokenizer.find("\u2581") ? "\u2581" : "\u0120"; }

  MappedFile file;
  Tokenizer tokenizer;
  ChatTemplate chat_template;
  TinyModel tiny;
  SteadyClock clock;
  KvStorage storage;
  Transformer transformer;
  Engine engine;
  ServedModel model;
  ServerMetrics metrics;
  CacheLog log;
};

struct Case {
  const char* variable;
  const char* chat_template;
};

struct Score {
  int num_pairs = 0, num_kinds_right = 0;
  double seconds = 0;
  std::size_t num_tokens = 0;
};

RequestUpdate first_update(int num_prompt, int num_cached) {
  RequestUpdate update;
  update.usage.num_prompt_tokens = num_prompt;
  update.usage.num_cached_tokens = num_cached;
  update.cache.missed = {{num_prompt - 1, num_prompt, MissCause::kTooShort}};
  return update;
}

void run_pair(Bench& bench, const Pair& pair, const std::string& name, Score& score) {
  SCOPED_TRACE(name);
  PreparedPrompt second = bench.prepare(pair.second);
  const Tokens known = joined(bench.prepare(pair.first).tokens, bench.generated(pair));
  const auto parted = std::mismatch(second.tokens.begin(), second.tokens.end(), known.begin(),
                                    known.end());
  const int num_common = static_cast<int>(parted.first - second.tokens.begin());
  const int num_prompt = static_cast<int>(second.tokens.size());
  PromptOrigin origin = second.origin;
  origin.id = "second";
  if (pair.reason == MissReason::kOtherSalt) origin.salt = 99;
  const auto begin = std::chrono::steady_clock::now();
  const OpenPrompt open = bench.log.open(std::move(origin), second.tokens, std::nullopt);
  const bool is_lost = pair.reason != MissReason::kDiverged && pair.reason != MissReason::kNeverSeen;
  const int num_cached = is_lost ? 0 : std::min(num_common, num_prompt - 1);
  const CacheReport report = bench.log.explain(open, first_update(num_prompt, num_cached));
  score.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  score.num_tokens += second.tokens.size();
  ++score.num_pairs;

  ASSERT_FALSE(report.misses.empty());
  int num_missed = 0;
  for (const MissedTokens& miss : report.misses) num_missed += miss.end - miss.begin;
  EXPECT_EQ(num_missed, num_prompt - num_cached);
  EXPECT_STREQ(miss_reason_name(report.misses[0].reason), miss_reason_name(pair.reason));
  if (pair.kind.empty()) {
    EXPECT_FALSE(report.divergence) << divergence_name(report.divergence->kind);
    ++score.num_kinds_right;
    return;
  }
  ASSERT_TRUE(report.divergence);
  EXPECT_EQ(report.divergence->token, num_common);
  if (pair.message >= 0) {
    EXPECT_EQ(report.divergence->message, pair.message);
  }
  const std::string kind = divergence_name(report.divergence->kind);
  score.num_kinds_right += kind == pair.kind;
  if (kind != pair.kind) {
    std::printf("  %s was called %s: \"%s\" -> \"%s\"\n", name.c_str(), kind.c_str(),
                report.divergence->old_text.c_str(), report.divergence->new_text.c_str());
  }
}

class CacheReasons : public ::testing::TestWithParam<Case> {};

TEST_P(CacheReasons, AreThoseOfTheTruth) {
  const char* path = std::getenv(GetParam().variable);
  if (!path) GTEST_SKIP() << GetParam().variable << " is not set";
  constexpr int kRounds = 22;  // of all kinds, with three settings: above 1,000 pairs in all
  Bench bench(path, GetParam().chat_template);
  Score score;
  std::uint32_t seed = 1;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::pair<std::string, Pair>> pairs;
    for (const Maker& maker : makers()) {
      Writer writer(seed++);
      pairs.emplace_back(fmt::format("{} {}", maker.name, round), maker.make(writer));
    }
    for (const auto& [name, pair] : pairs) {
      PreparedPrompt first = bench.prepare(pair.first);
      PromptOrigin origin = first.origin;
      origin.id = name;
      const OpenPrompt open = bench.log.open(std::move(origin), first.tokens, std::nullopt);
      bench.log.complete(open, bench.generated(pair));
    }
    for (const auto& [name, pair] : pairs) {
      const bool needs_tools = !pair.first.tools.is_null();
      if (needs_tools && bench.chat_template.source().find("tools") == std::string::npos) continue;
      run_pair(bench, pair, name, score);
    }
  }
  std::printf("  %d pairs, class right in %.2f %%, %.3f ms per 1,000 tokens\n", score.num_pairs,
              100.0 * score.num_kinds_right / score.num_pairs,
              1e6 * score.seconds / static_cast<double>(score.num_tokens));
  EXPECT_GE(score.num_kinds_right, 0.98 * score.num_pairs);
}

INSTANTIATE_TEST_SUITE_P(
    Models, CacheReasons,
    ::testing::Values(Case{"LARDER_TEST_SMOLLM2", "smollm2.jinja"},
                      Case{"LARDER_TEST_SMOLLM2", "qwen3.jinja"},
                      Case{"LARDER_TEST_GEMMA3", "gemma3.jinja"},
                      Case{"LARDER_TEST_SMOLLM2", "qwen2.5.jinja"}));

// A prompt of 8,000 tokens against a full ledger, changed at its beginning: the costliest case.
TEST(CacheReasonsCost, IsPrinted) {
  const char* path = std::getenv("LARDER_TEST_SMOLLM2");
  if (!path) GTEST_SKIP() << "LARDER_TEST_SMOLLM2 is not set";
  Bench bench(path, "smollm2.jinja");
  std::vector<double> ms;
  for (std::uint32_t i = 0; i < 40; ++i) {
    Writer writer(1000 + i);
    Tokens tokens;
    for (int t = 0; t < 8000; ++t) tokens.push_back(100 + writer.below(40000));
    for (const int changed : {-1, 3}) {
      if (changed >= 0) tokens[static_cast<std::size_t>(changed)] += 1;
      PromptOrigin origin;
      origin.id = fmt::format("{} {}", i, changed);
      origin.roles = {"system"};
      origin.parts = {{0, 0}};
      const auto begin = std::chrono::steady_clock::now();
      const OpenPrompt open = bench.log.open(std::move(origin), tokens, std::nullopt);
      const CacheReport report = bench.log.explain(open, first_update(8000, 0));
      const auto end = std::chrono::steady_clock::now();
      EXPECT_EQ(report.divergence.has_value(), changed >= 0);
      ms.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
    }
  }
  std::ranges::sort(ms);
  std::printf("  8,000 tokens: median %.3f ms, slowest %.3f ms a request\n", ms[ms.size() / 2],
              ms.back());
}

}  // namespace
}  // namespace larder
