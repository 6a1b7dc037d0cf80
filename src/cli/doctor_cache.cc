// larder doctor cache: why prompts missed the cache, from a running server or a list of requests.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/http_get.h"
#include "cli/runtime.h"
#include "server/api/anthropic_request.h"
#include "server/chat/prompt.h"
#include "server/chat/served_model.h"
#include "server/chat/settle_chat.h"
#include "server/report/cache_log.h"
#include "server/report/cache_losses.h"
#include "server/server_limits.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

constexpr int kMostShown = 12;
constexpr std::size_t kMaxShownBytes = 400;
constexpr std::size_t kMaxPartBytes = 48;  // of a prompt

struct DoctorCacheOptions {
  RuntimeOptions runtime;
  std::string source;
  std::string api_key;
  bool json = false;
};

bool has_part_of(const Json& list, const char* key, std::initializer_list<const char*> values) {
  if (!list.is_array()) return false;
  return std::ranges::any_of(list, [&](const Json& part) {
    const auto value = part.is_object() ? part.find(key) : part.end();
    return part.is_object() && value != part.end() &&
           (values.size() == 0 || std::ranges::find(values, *value) != values.end());
  });
}

// Whether only Anthropic's API knows what the request has: the system prompt beside the messages, its
// form of tools, and calls of them.
bool is_messages_request(const Json& body) {
  if (body.contains("system")) return true;
  if (body.contains("tools") && has_part_of(body["tools"], "input_schema", {})) return true;
  return body["messages"].is_array() &&
         std::ranges::any_of(body["messages"], [](const Json& message) {
           return message.is_object() && message.contains("content") &&
                  has_part_of(message["content"], "type", {"tool_use", "tool_result"});
         });
}

// Requests as a client sent them, one after another, against a cache that forgets nothing: what they
// would have missed in it is the client's doing.
class Replay {
 public:
  explicit Replay(const RuntimeOptions& options)
      : runtime_(options),
        model_{.name = "replay",
               .aliases = {},
               .tokenizer = runtime_.tokenizer(),
               .chat_template = runtime_.chat_template(),
               .engine = runtime_.engine(),
               .max_model_len = 1 << 24,
               .metadata = {}},
        summarizer_{
            .table = summaries_,
            .tokenizer = model_.tokenizer,
            .salt = {},
            .measure = [this](const ChatRequest& asked) { return measure_chat(asked, model_); },
            .answer = [](const Digest&) { return std::nullopt; },
            .max_model_len = runtime_.plan().max_model_len},
        metrics_("replay", model_.max_model_len),
        log_(model_.tokenizer, metrics_, {}, {.max_ledger_bytes = std::size_t{1} << 30}) {}

  Json report(Json body) {
    const RequestRules rules{.limits = limits_, .vocab_size = model_.tokenizer.vocab_size(),
                             .max_model_len = model_.max_model_len};
    const bool is_messages = is_messages_request(body);
    if (is_messages && !body.contains("max_tokens")) body["max_tokens"] = 1;
    ChatRequest request =
        is_messages ? parse_messages_request(body, rules) : parse_chat_request(body, rules);
    settle(request, model_, summarizer_, answers_);
    PreparedPrompt prompt = prepare_chat(request, model_);
    PromptOrigin origin = std::move(prompt.origin);
    origin.id = fmt::format("request {}", ++num_requests_);
    origin.salt = hash_text(request.options.cache_salt);
    origin.conversation = hash_text(request.options.prompt_cache_key);
    const OpenPrompt open = log_.open(std::move(origin), prompt.tokens, std::nullopt);
    const int num_prompt = static_cast<int>(prompt.tokens.size());
    RequestUpdate update;
    update.usage.num_prompt_tokens = num_prompt;
    update.usage.num_cached_tokens = std::min(open.comparison.num_common, num_prompt - 1);
    update.cache.missed = {{num_prompt - 1, num_prompt, MissCause::kTooShort}};
    return cache_report_json(log_.explain(open, update));
  }

 private:
  Runtime runtime_;
  const ServerLimits limits_;
  const ServedModel model_;
  Summarizer::Table summaries_{0};  // stays empty: nothing is asked of the model
  HistoryTokens answers_{0};        // likewise
  const Summarizer summarizer_;
  ServerMetrics metrics_;
  CacheLog log_;
  int num_requests_ = 0;
};

Json unwrapped(Json json) {
  for (const char* wrapper : {"request", "body"})
    if (json.is_object() && json.contains(wrapper)) json = Json(json[wrapper]);
  return json;
}

// One, or a list as /v1/cache/requests answers.
void add_reports(const Json& json, CacheLosses& losses) {
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array()) return losses.add(json);
  for (const Json& report : json["data"]) losses.add(report);
}

// Whether a terminal would do something else than show it: go on in another line, obey a sequence of control
// characters, or show what stands beside it in another order.
bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// What somebody else wrote, fit for a terminal: one line, in the letters that it has.
std::string one_line(const std::string& text, std::size_t max_bytes) {
  const std::string shown = shorten(text, max_bytes);
  std::string line;
  for (std::size_t position = 0; position < shown.size();) {
    const Utf8Char next = read_utf8(shown, position);
    if (!next.valid)
      line += '?';
    else if (is_control(next.code_point))
      line += ' ';
    else
      line.append(shown, position, next.length);
    position += next.length;
  }
  return line;
}

void refuse_other_requests(const Json& json) {
  if (!json.is_object() || json.contains("messages") || json.contains("object")) return;
  for (const auto& [field, whose] : {std::pair("prompt", "a completion's"), std::pair("input", "a response's")})
    if (json.contains(field)) throw_invalid("this is {} request; those of chats and messages are replayed", whose);
}

// A file of JSON, one object per line: cache reports, or requests as they were sent.
void read_log(const DoctorCacheOptions& options, CacheLosses& losses) {
  std::ifstream file(options.source);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(options.source, ignored))
    throw Error(ErrorKind::kNotFound, options.source + ": cannot be read; give a file, or a server as http://HOST:PORT");
  std::unique_ptr<Replay> replay;
  int number = 0, num_skipped = 0;
  const auto attempt = [&](auto&& step) {
    try {
      step();
      return true;
    } catch (const std::exception& error) {  // whatever an odd line makes of it
      if (++num_skipped <= 3)
        std::fprintf(stderr, "%s:%d: left out: %s\n", options.source.c_str(), number,
                     one_line(error.what(), kMaxShownBytes).c_str());
      return false;
    }
  };
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json json;
    if (!attempt([&] { json = unwrapped(parse_json(line, {})); })) continue;
    const bool is_request = json.is_object() && json.contains("messages");
    // A model or an option that cannot be used is no fault of the line.
    if (is_request && !replay) replay = std::make_unique<Replay>(options.runtime);
    attempt([&] {
      refuse_other_requests(json);
      add_reports(is_request ? replay->report(std::move(json)) : json, losses);
    });
  }
  if (num_skipped > 3) std::fprintf(stderr, "%d lines were left out\n", num_skipped);
  if (losses.num_requests() == 0)
    throw_invalid("{}: has neither cache reports nor chat requests, one JSON object per line",
                  options.source);
}

void read_server(const DoctorCacheOptions& options, CacheLosses& losses) {
  const Json list =
      parse_json(http_get(options.source, "/v1/cache/requests", options.api_key), {});
  const auto data = list.find("data");
  if (data == list.end() || !data->is_array())
    throw_invalid("{}: answers, but not as Larder does", options.source);
  try {
    for (const Json& report : *data) losses.add(report);
  } catch (const Error& error) {
    throw_invalid("{}: answers, but not as Larder does: {}", options.source, error.what());
  }
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

void print(const CacheLosses& losses) {
  const std::int64_t num_prompt = losses.num_prompt_tokens();
  const std::int64_t num_lost = num_prompt - losses.num_cached_tokens() - losses.num_new_tokens();
  std::printf("%lld requests, %lld prompt tokens: %.1f %% reused, %.1f %% new, %.1f %% lost\n",
              static_cast<long long>(losses.num_requests()), static_cast<long long>(num_prompt),
              percent(losses.num_cached_tokens(), num_prompt),
              percent(losses.num_new_tokens(), num_prompt), percent(num_lost, num_prompt));
  int num_shown = 0;
  for (const CacheLoss& loss : losses.sorted()) {
    if (++num_shown > kMostShown) break;
    const auto shown = [](const std::string& text) { return one_line(text, kMaxShownBytes); };
    std::printf("\n%10lld tokens in %lld requests: %s%s%s\n", static_cast<long long>(loss.num_tokens),
                static_cast<long long>(loss.num_requests), shown(loss.why).c_str(),
                loss.segment.empty() ? "" : " in ", shown(loss.segment).c_str());
    if (!loss.new_text.empty())
      std::printf("           \"%s\" became \"%s\"\n", one_line(loss.old_text, kMaxPartBytes).c_str(),
                  one_line(loss.new_text, kMaxPartBytes).c_str());
    std::printf("           %s\n", shown(loss.advice).c_str());
  }
}

void print_json(const CacheLosses& losses) {
  Json json = {{"requests", losses.num_requests()},
               {"prompt_tokens", losses.num_prompt_tokens()},
               {"cached_tokens", losses.num_cached_tokens()},
               {"new_tokens", losses.num_new_tokens()},
               {"losses", Json::array()}};
  for (const CacheLoss& loss : losses.sorted()) {
    json["losses"].push_back({{"why", loss.why},
                              {"segment", loss.segment},
                              {"tokens", loss.num_tokens},
                              {"requests", loss.num_requests},
                              {"advice", loss.advice},
                              {"old_text", loss.old_text},
                              {"new_text", loss.new_text}});
  }
  std::printf("%s\n", dump_json(json).c_str());
}

void examine_cache(const DoctorCacheOptions& options) {
  spdlog::set_level(spdlog::level::warn);  // what the log would say of each request is summed up here
  CacheLosses losses;
  if (options.source.find("://") != std::string::npos) {
    read_server(options, losses);
  } else {
    read_log(options, losses);
  }
  if (options.json) return print_json(losses);
  print(losses);
}

// What was given to the examination around this one would go unheeded.
void refuse_options_of(const CLI::App& doctor, const CLI::App& command) {
  for (const CLI::Option* option : doctor.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    if (command.get_option_no_throw(name) != nullptr) throw_invalid("{}: give it after `cache`", name);
    throw_invalid("{}: `larder doctor cache` has no such option; leave it out", name);
  }
}

}  // namespace

void add_doctor_cache_command(CLI::App& doctor) {
  auto options = std::make_shared<DoctorCacheOptions>();
  CLI::App* command = doctor.add_subcommand(
      "cache", "Says why prompts missed the cache, and what to change in the client");
  command
      ->add_option("source", options->source,
                   "A server (http://HOST:PORT) or a file: cache reports or requests, one per line")
      ->required();
  add_runtime_options(*command, options->runtime);
  command->add_option("--api-key", options->api_key, "The server's");
  command->add_flag("--json", options->json, "For programs");
  command->callback([options, command, &doctor] {
    refuse_options_of(doctor, *command);
    examine_cache(*options);
  });
}

}  // namespace larder
