#include "server/chat/history_summary.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "server/chat/render_chat.h"
#include "server/chat/response_items.h"
#include "server/utf8.h"
#include "server/white_space.h"

namespace larder {
namespace {

constexpr std::string_view kSummaryRequest =
    "Summarize our conversation so far in a few sentences. Keep names, numbers, facts, decisions and "
    "open tasks. Write only the summary.";
// Steps that one request makes up for; of what was dropped before them nothing is told.
constexpr std::size_t kMaxSteps = 32;
constexpr int kLeastAnswer = 8;          // tokens; less is no summary
constexpr std::size_t kLeastQuote = 64;  // bytes; less is no quote

class SummaryWriter {
 public:
  SummaryWriter(const SummaryTask& task, const Summarizer& summarizer)
      : task_(task),
        summarizer_(summarizer),
        max_answer_(task.max_tokens - count_tokens(fmt::format("{}\n\n", kSummaryHeading))),
        at_(task.num_head) {
    summary_.text = task.chat.summary;
  }

  std::optional<SummaryQuestion> write(Summary& summary) {
    const std::vector<std::size_t>& steps = task_.steps;
    const std::size_t first = steps.size() - std::min(steps.size(), kMaxSteps);
    std::size_t step = steps.size();
    while (step > first && !recall(steps[step - 1])) --step;
    if (step == first && first > 0) leave_untold(steps[first - 1]);
    for (; step < steps.size(); ++step) {
      while (at_ < steps[step]) {
        if (auto question = advance(steps[step])) return question;
      }
    }
    summary = std::move(summary_);
    return std::nullopt;
  }

 private:
  // Of what is summed up: a system prompt that tells the time is none of it, nor is the room that it leaves.
  Digest key_of(std::size_t end) const {
    std::string text = fmt::format("{} {}{} {}", summarizer_.salt.size(), summarizer_.salt,
                                   task_.chat.summary.size(), task_.chat.summary);
    for (std::size_t i = task_.num_head; i < end; ++i) text += dump_json(task_.chat.messages[i].json);
    return sha256(std::as_bytes(std::span(text)));
  }

  bool recall(std::size_t end) {
    const auto known = summarizer_.table.find(key_of(end));
    if (!known) return false;
    summary_ = **known;
    summary_.text = cut(summary_.text);
    at_ = end;
    return true;
  }

  void leave_untold(std::size_t end) {
    summary_.num_untold += end - at_;
    at_ = end;
  }

  // Sums up the messages from at_ on, to end if they fit, unless there is something to ask first.
  std::optional<SummaryQuestion> advance(std::size_t end) {
    std::optional<ChatRequest> question;
    if (max_answer_ >= kLeastAnswer) question = ask_behind(end);
    if (!question && max_answer_ >= kLeastAnswer) question = ask_quoting(end);
    std::optional<std::string> answer;
    if (question) {
      const Digest key = key_of(end);
      answer = summarizer_.answer(key);
      if (!answer && summarizer_.may_ask) return SummaryQuestion{key, *std::move(question)};
      is_lasting_ = is_lasting_ && answer;  // without one another request may get one
    }
    const std::string_view text = answer ? trimmed(*answer) : std::string_view();
    if (text.empty()) {
      leave_untold(end);
    } else {
      summary_.text = cut(text);
      at_ = end;
    }
    remember();
    return std::nullopt;
  }

  void remember() {
    if (!is_lasting_) return;
    summarizer_.table.put(key_of(at_), std::make_shared<const Summary>(summary_),
                          sizeof(Summary) + summary_.text.size());
  }

  ChatRequest begin_question() const {
    const GenerationOptions& options = task_.chat.options;
    ChatRequest ask;
    ask.options.sampling.temperature = 0;
    ask.options.sampling.max_tokens = max_answer_;
    ask.options.has_max_tokens = true;
    ask.options.priority = options.priority;
    ask.options.cache_salt = options.cache_salt;
    ask.options.prompt_cache_key = options.prompt_cache_key;
    ask.template_kwargs = task_.chat.template_kwargs;
    ask.template_kwargs["enable_thinking"] = false;  // the answer's room is for the summary
    return ask;
  }
  int count_tokens(const std::string& text) const {
    return static_cast<int>(summarizer_.tokenizer.encode(text, false, false).size());
  }

  // Text may take more tokens to read than it took to write.
  std::string cut(std::string_view text) const {
    std::vector<TokenId> tokens = summarizer_.tokenizer.encode(text, false, false);
    const auto most = static_cast<std::size_t>(max_answer_);
    if (tokens.size() <= most) return std::string(text);
    tokens.resize(most);
    return to_valid_utf8(summarizer_.tokenizer.decode(tokens));
  }

  bool fits(const ChatRequest& ask) const {
    const auto num_tokens = summarizer_.measure(ask);
    return num_tokens && *num_tokens <= summarizer_.max_model_len - max_answer_;
  }

  // As the conversation's next message, where the prompt is cached.
  std::optional<ChatRequest> ask_behind(std::size_t end) const {
    ChatRequest ask = begin_question();
    ask.tools = task_.chat.tools;
    const auto place = [&](std::size_t i) {
      return task_.chat.messages.begin() + static_cast<std::ptrdiff_t>(i);
    };
    ask.messages.insert(ask.messages.end(), place(0), place(task_.num_head));
    ask.messages.insert(ask.messages.end(), place(at_), place(end));
    ask.messages.push_back(message_of("user", kSummaryRequest));
    // Of a request that no client sent.
    for (std::size_t i = 0; i < ask.messages.size(); ++i) ask.messages[i].sent_as = static_cast<int>(i);
    if (!summary_.text.empty()) put_summary(ask, summary_.text);
    ask.summary = summary_.text;
    ask.system_hash = task_.chat.system_hash;
    return fits(ask) ? std::optional(std::move(ask)) : std::nullopt;
  }

  // About text, of as many messages as fit; end becomes where they do. Of a long message its beginning,
  // as far as that is a quote; a whole message always is.
  std::optional<ChatRequest> ask_quoting(std::size_t& end) const {
    ChatRequest ask = begin_question();
    std::size_t last = end;
    std::string quotes = quote_messages(task_.chat.messages, at_, last);
    bool is_whole = true;
    while (is_whole || quotes.size() >= kLeastQuote) {
      std::string text;
      if (!summary_.text.empty()) text = fmt::format("{}{}\n\n", kSummaryHeading, summary_.text);
      text += fmt::format("Our conversation:\n{}\n{}", quotes, kSummaryRequest);
      ask.messages = {message_of("user", std::move(text))};
      ask.messages[0].sent_as = 0;
      if (fits(ask)) {
        end = last;
        return ask;
      }
      if (last - at_ > 1) {
        last -= (last - at_) / 2;
        quotes = quote_messages(task_.chat.messages, at_, last);
      } else {
        quotes = shorten(quotes, quotes.size() / 2);
        is_whole = false;
      }
    }
    return std::nullopt;
  }

  const SummaryTask& task_;
  const Summarizer& summarizer_;
  const int max_answer_;  // tokens
  Summary summary_;
  std::size_t at_;  // messages before are summed up
  bool is_lasting_ = true;
};

}  // namespace

std::string text_of_message(const Json& message) {
  std::string text;
  if (const auto content = message.find("content"); content != message.end()) {
    if (content->is_string()) text = content->get<std::string>();
    else if (!content->is_null()) text = dump_json(*content);
  }
  if (const auto calls = message.find("tool_calls"); calls != message.end() && !calls->is_null()) {
    text += '\n' + dump_json(*calls);
  }
  return text;
}

std::string quote_messages(const std::vector<ChatMessage>& messages, std::size_t begin, std::size_t end) {
  std::string text;
  for (std::size_t i = begin; i < end; ++i) {
    const Json& message = messages[i].json;
    text += fmt::format("{}: {}\n", message["role"].get_ref<const std::string&>(), text_of_message(message));
  }
  return text;
}

std::optional<SummaryQuestion> sum_up(const SummaryTask& task, const Summarizer& summarizer, Summary& summary) {
  return SummaryWriter(task, summarizer).write(summary);
}

void put_summary(ChatRequest& chat, const std::string& text) {
  const std::string summary = std::string(kSummaryHeading) + text;
  if (chat.messages.empty()) return;
  ChatMessage& first = chat.messages[0];
  const auto content = first.json.find("content");
  const bool has_text = content != first.json.end() && content->is_string();
  if (first.json["role"] == "system" && has_text) {
    std::string whole = content->get<std::string>() + "\n\n" + summary;
    if (!first.parts.empty()) first.parts.back().end = whole.size();
    *content = std::move(whole);
    return;
  }
  chat.messages.insert(chat.messages.begin(), message_of("system", summary));
  for (KnownTurn& turn : chat.known_turns) ++turn.message;
  for (CacheMark& mark : chat.marks) mark.message += mark.message >= 0;
}

}  // namespace larder
