#include "server/chat/long_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/chat/bm25.h"
#include "server/chat/render_chat.h"

namespace larder {
namespace {

constexpr int kMessageOverhead = 8;  // tokens around a message, where the template tells nothing
constexpr std::size_t kNumRetrieved = 3;
constexpr int kQuotedShare = 4;  // of the messages' room: one in so many for quotes or a summary
constexpr std::string_view kQuotesHeading = "From earlier in this conversation:\n";

std::string_view role_of(const ChatMessage& message) { return message.json["role"].get_ref<const std::string&>(); }

bool begins_turn(const ChatMessage& message) { return role_of(message) == "user"; }

std::size_t head_of(const std::vector<ChatMessage>& messages) {
  std::size_t num_head = 0;
  while (num_head < messages.size() && !begins_turn(messages[num_head])) ++num_head;
  return num_head;
}

int count_tokens(const std::string& text, const Tokenizer& tokenizer) {
  return static_cast<int>(tokenizer.encode(text, false, false).size());
}

// Where the turns among messages [begin, end) begin.
std::vector<std::size_t> turns_of(const std::vector<ChatMessage>& messages, std::size_t begin, std::size_t end) {
  std::vector<std::size_t> turns;
  for (std::size_t i = begin; i < end; ++i) {
    if (turns.empty() || begins_turn(messages[i])) turns.push_back(i);
  }
  return turns;
}

constexpr int kRoomStep = 64;

// How many tokens the prompt may take, so that the answer has room.
int limit_of(const ChatRequest& chat, int max_model_len) {
  constexpr int kSpare = 16;  // tokens may join at seams, or fall apart
  const GenerationOptions& options = chat.options;
  const int answer = options.answer_tokens(max_model_len).value_or(max_model_len / 8);
  const int wanted =
      options.history.max_tokens > 0 ? options.history.max_tokens : max_model_len / 4 * 3;
  const int most = max_model_len - answer - kSpare;
  return std::min(wanted, std::max(most, max_model_len / 4));
}

// The dropped turns that are about the question, in their order, as far as the room goes.
void retrieve(const std::vector<ChatMessage>& messages, const HistoryCut& cut, const Tokenizer& tokenizer,
              HistoryReport& report, int room) {
  std::vector<std::size_t> turns = turns_of(messages, cut.num_head, cut.first_kept);
  turns.push_back(cut.first_kept);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i + 1 < turns.size(); ++i) {
    texts.push_back(quote_messages(messages, turns[i], turns[i + 1]));
  }
  room -= count_tokens(std::string(kQuotesHeading) + '\n', tokenizer);
  std::vector<std::size_t> chosen;
  for (const std::size_t text : Bm25(texts).best(report.question, kNumRetrieved)) {
    int size = count_tokens(texts[text], tokenizer);
    if (size > room && chosen.empty() && room > 0) {  // the best one's beginning is better than nothing
      const auto share = static_cast<double>(room) / size;
      texts[text] = shorten(texts[text], static_cast<std::size_t>(
                                             static_cast<double>(texts[text].size()) * share * 0.9));
      texts[text] += '\n';
      size = count_tokens(texts[text], tokenizer);
    }
    if (size > room) continue;
    room -= size;
    chosen.push_back(text);
  }
  if (chosen.empty()) return;
  std::ranges::sort(chosen);
  report.quotes = kQuotesHeading;
  for (const std::size_t text : chosen) {
    report.quotes += texts[text];
    report.retrieved_turns.push_back(static_cast<int>(text) + 1);
  }
  report.quotes += '\n';
}

// The newest text of the user; "" = none.
std::string question_of(const std::vector<ChatMessage>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (begins_turn(messages[i])) return text_of_message(messages[i].json);
  }
  return {};
}

void drop(ChatRequest& chat, const HistoryCut& cut) {
  const std::size_t num_dropped = cut.num_dropped();
  chat.num_dropped = static_cast<int>(num_dropped);
  std::optional<ChatMessage> unanswered;
  if (cut.unanswered) unanswered = chat.messages[*cut.unanswered];
  const auto begin = chat.messages.begin();
  const auto head = static_cast<std::ptrdiff_t>(cut.num_head);
  chat.messages.erase(begin + head, begin + static_cast<std::ptrdiff_t>(cut.first_kept));
  const auto is_dropped = [&](auto message) {
    return std::cmp_greater_equal(message, cut.num_head) &&
           std::cmp_less(message, cut.first_kept);
  };
  std::erase_if(chat.known_turns, [&](const KnownTurn& turn) { return is_dropped(turn.message); });
  std::erase_if(chat.marks, [&](const CacheMark& mark) { return is_dropped(mark.message); });
  for (KnownTurn& turn : chat.known_turns) {
    if (turn.message >= cut.first_kept) turn.message -= num_dropped;
  }
  for (CacheMark& mark : chat.marks) {
    if (std::cmp_greater_equal(mark.message, cut.first_kept)) {
      mark.message -= static_cast<int>(num_dropped);
    }
  }
  if (unanswered) chat.messages.insert(chat.messages.begin() + head, std::move(*unanswered));
}

// Tokens. Of a short conversation that is to be compacted a summary is to be shorter still; an earlier one, of which it
// becomes a part, keeps its own.
int summary_room(const HistoryReport& report, int num_before, int room) {
  constexpr int kLeast = 64;
  return report.options.drops_all ? std::min(room, std::max(report.num_dropped_tokens / 2, kLeast) + num_before) : room;
}

void count_dropped(const std::vector<ChatMessage>& messages, const std::vector<int>& sizes,
                   const HistoryCut& cut, HistoryReport& report) {
  const auto turns = turns_of(messages, cut.num_head, cut.first_kept);
  report.num_dropped_turns = static_cast<int>(turns.size());
  report.num_dropped_messages = static_cast<int>(cut.num_dropped());
  for (std::size_t i = cut.num_head; i < cut.first_kept; ++i) report.num_dropped_tokens += sizes[i];
  report.num_kept_messages = static_cast<int>(messages.size() - cut.num_dropped()) + (cut.unanswered ? 1 : 0);
}

}  // namespace

HistoryCut roll_window(const std::vector<ChatMessage>& messages, const std::vector<int>& sizes, int limit,
                       std::vector<std::size_t>* steps) {
  HistoryCut cut;
  cut.num_head = cut.first_kept = head_of(messages);
  std::size_t turn = cut.num_head;  // the one that is being walked
  std::int64_t sum = 0;
  for (std::size_t i = cut.num_head; i < messages.size(); ++i) {
    if (begins_turn(messages[i])) turn = i;
    sum += sizes[i];
    // Only here may a request have ended, or where this one ends: its last answer may be to be continued.
    const bool is_answered = role_of(messages[i]) == "assistant" && i + 1 < messages.size();
    if (is_answered || sum <= limit) continue;
    while (sum > limit / 2 && cut.first_kept < turn) {
      do {
        sum -= sizes[cut.first_kept++];
      } while (cut.first_kept < turn && !begins_turn(messages[cut.first_kept]));
    }
    const bool is_new = cut.first_kept > cut.num_head &&
                        (steps == nullptr || steps->empty() || steps->back() < cut.first_kept);
    if (steps != nullptr && is_new) steps->push_back(cut.first_kept);
  }
  return cut;
}

HistoryCut drop_turns(const std::vector<ChatMessage>& messages, const std::vector<int>& sizes, int limit) {
  HistoryCut cut;
  cut.num_head = cut.first_kept = head_of(messages);
  if (cut.num_head == messages.size()) return cut;
  std::size_t last = messages.size() - 1;
  while (!begins_turn(messages[last])) --last;
  std::int64_t size = 0;
  for (std::size_t i = last; i < messages.size(); ++i) size += sizes[i];
  const bool stays = last > cut.num_head && size <= limit / 2;
  cut.first_kept = stays ? last : messages.size();
  const Json& end = messages.back().json;
  const auto calls = end.find("tool_calls");
  const bool is_answered = role_of(messages.back()) == "assistant" && (calls == end.end() || calls->is_null());
  if (!stays && !is_answered) cut.unanswered = last;
  return cut;
}

MessageSizes measure_messages(const ChatRequest& chat, const Summarizer& summarizer) {
  const Tokenizer& tokenizer = summarizer.tokenizer;
  const std::size_t num_head = head_of(chat.messages);
  ChatRequest probe;
  probe.tools = chat.tools;
  probe.template_kwargs = chat.template_kwargs;
  const auto begin = chat.messages.begin();
  probe.messages.insert(probe.messages.end(), begin, begin + static_cast<std::ptrdiff_t>(num_head));
  const auto add = [&](const char* role) {
    probe.messages.push_back(message_of(role, "x"));
    return count_tokens("x", tokenizer);
  };
  MessageSizes sizes;
  const int one = add("user");
  const auto first = summarizer.measure(probe);
  const int two = add("assistant") + add("user");
  const auto second = summarizer.measure(probe);
  int overhead = kMessageOverhead;
  if (first && second) overhead = std::max(0, (*second - *first - two + 1) / 2);
  if (first) sizes.head = std::max(0, *first - one - overhead);
  sizes.messages.reserve(chat.messages.size());
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const int size = count_tokens(text_of_message(chat.messages[i].json), tokenizer) + overhead;
    sizes.messages.push_back(size);
    if (!first && i < num_head) sizes.head += size;
  }
  return sizes;
}

std::optional<HistoryReport> shorten_history(ChatRequest& chat, const Summarizer& summarizer) {
  HistoryReport report;
  report.options = chat.options.history;
  const HistoryStrategy strategy = report.options.strategy;
  const bool sums_up = strategy == HistoryStrategy::kSummary;
  if (!sums_up && !chat.summary.empty()) put_summary(chat, chat.summary);
  if (strategy == HistoryStrategy::kNone) return std::nullopt;
  const int limit = limit_of(chat, summarizer.max_model_len);
  report.options.max_tokens = limit;
  const MessageSizes sizes = measure_messages(chat, summarizer);
  // In steps, so that a word more or less in the system prompt leaves what is dropped as it was.
  const int room = std::max((limit - sizes.head) / kRoomStep * kRoomStep, 1);
  const int extra = strategy == HistoryStrategy::kRollingWindow ? 0 : room / kQuotedShare;
  std::vector<std::size_t> steps;
  report.cut = report.options.drops_all ? drop_turns(chat.messages, sizes.messages, room - extra)
                                        : roll_window(chat.messages, sizes.messages, room - extra, &steps);
  const HistoryCut& cut = report.cut;
  if (report.options.drops_all && cut.num_dropped() > 0) steps = {cut.first_kept};

  count_dropped(chat.messages, sizes.messages, cut, report);
  if (sums_up) report.summary.text = chat.summary;
  if (cut.num_dropped() > 0) {
    if (strategy == HistoryStrategy::kRetrieval) {
      report.question = question_of(chat.messages);
      retrieve(chat.messages, cut, summarizer.tokenizer, report, extra);
    }
    if (sums_up) {
      const int num_before = count_tokens(chat.summary, summarizer.tokenizer);
      const int most = summary_room(report, num_before, extra);
      report.to_ask = sum_up({chat, cut.num_head, std::move(steps), most}, summarizer, report.summary);
      if (report.to_ask) return report;
      MessageRun run;
      for (std::size_t i = cut.num_head; i < cut.first_kept; ++i) run.add(chat.messages[i].json);
      report.summed = run.whole();
    }
    drop(chat, cut);
    if (sums_up)
      for (const ChatMessage& message : chat.messages) report.kept.push_back(message.json);
  }
  if (sums_up) chat.summary = report.summary.text;
  if (!report.summary.text.empty()) put_summary(chat, report.summary.text);
  return report;
}

void put_quotes(ChatRequest& chat, HistoryReport& report) {
  if (report.quotes.empty()) return;
  for (std::size_t i = chat.messages.size(); i-- > 0;) {
    ChatMessage& message = chat.messages[i];
    const auto content = message.json.find("content");
    if (!begins_turn(message) || content == message.json.end() || !content->is_string()) continue;
    auto& text = content->get_ref<std::string&>();
    if (!text.ends_with(report.question)) continue;  // a system prompt may stand before it
    const std::size_t place = text.size() - report.question.size();
    text.insert(place, report.quotes);
    chat.quoted_message = static_cast<int>(i);
    for (ContentPart& part : message.parts) {
      if (part.end > place) part.end += report.quotes.size();
    }
    return;
  }
  report.retrieved_turns.clear();
}

Json HistoryReport::json() const {
  return {{"strategy", to_string(options.strategy)},
          {"max_tokens", options.max_tokens},
          {"dropped_turns", num_dropped_turns},
          {"dropped_messages", num_dropped_messages},
          {"dropped_tokens", num_dropped_tokens},
          {"kept_messages", num_kept_messages},
          {"retrieved_turns", retrieved_turns},
          {"summary", summary.text.empty() ? Json() : Json(summary.text)},
          {"untold_messages", summary.num_untold},
          {"summary_usage", summary_usage}};
}

}  // namespace larder
