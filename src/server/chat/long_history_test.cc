#include "server/chat/long_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/chat/bm25.h"
#include "server/chat/render_chat.h"
#include "server/chat/response_items.h"
#include "server/server_test_support.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

Json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// A system prompt and turns; turn 3 has a fact that no other has.
Json conversation(int num_turns) {
  Json messages = Json::array({message("system", "You are helpful.")});
  for (int turn = 1; turn <= num_turns; ++turn) {
    const std::string fact = turn == 3 ? " My password is Zanzibar." : "";
    messages.push_back(message("user", "This is turn " + std::to_string(turn) + "." + fact));
    messages.push_back(message("assistant", "I have read turn " + std::to_string(turn) + "."));
  }
  return messages;
}

ChatRequest chat_of(const Json& messages, HistoryStrategy strategy, int max_tokens) {
  ChatRequest chat;
  chat.messages = messages_of(messages);
  chat.options.history = {.strategy = strategy, .max_tokens = max_tokens};
  return chat;
}

// A prompt of a template that puts ten tokens around a message, and three at the end. A character is a token.
std::optional<int> measure(const ChatRequest& chat) {
  int sum = 3;
  for (const ChatMessage& message : chat.messages) {
    sum += static_cast<int>(message.json["content"].get_ref<const std::string&>().size()) + 10;
  }
  return sum;
}

// A model that counts its answers, and what it takes.
class Fake {
 public:
  explicit Fake(int max_model_len = 100'000) {
    summarizer.measure = [](const ChatRequest& chat) { return measure(chat); };
    summarizer.answer = [this](const Digest& key) -> std::optional<std::string> {
      const auto found = answers.find(key);
      return found != answers.end() ? std::optional(found->second) : std::nullopt;
    };
    summarizer.max_model_len = max_model_len;
  }
  // As a server does it: anew behind each answer.
  std::optional<HistoryReport> shorten(ChatRequest& chat) {
    const ChatRequest whole = chat;
    auto report = shorten_history(chat, summarizer);
    while (report && report->to_ask && answer(*std::move(report->to_ask))) {
      chat = whole;
      report = shorten_history(chat, summarizer);
    }
    if (report) put_quotes(chat, *report);
    return report;
  }
  // false: it would be asked for ever.
  bool answer(SummaryQuestion question) {
    EXPECT_LE(*measure(question.chat) + question.chat.options.sampling.max_tokens, summarizer.max_model_len);
    asked.push_back(std::move(question.chat));
    const bool is_new = answers.emplace(question.key, "Summary " + std::to_string(asked.size()) + ".\n").second;
    EXPECT_TRUE(is_new);
    return is_new;
  }

  const Tokenizer tokenizer = Tokenizer(tiny_vocabulary());
  Summarizer::Table table = Summarizer::Table(1 << 20);
  Summarizer summarizer{.table = table, .tokenizer = tokenizer, .salt = "salt", .measure = {}, .answer = {}, .may_ask = true};
  std::unordered_map<Digest, std::string, DigestHash> answers;
  std::vector<ChatRequest> asked;
};

TEST(Bm25, FindsWhatIsAboutTheQuestion) {
  const Bm25 index({"The cat sat.", "A dog barked at the cat.", "Rain.", "Ärger über Rain"});
  EXPECT_EQ(index.best("dog?", 2), (std::vector<std::size_t>{1}));
  EXPECT_EQ(index.best("CAT", 2), (std::vector<std::size_t>{0, 1})) << "the shorter text first";
  EXPECT_EQ(index.best("über", 2), (std::vector<std::size_t>{3}));
  EXPECT_TRUE(index.best("nothing", 2).empty());
  EXPECT_TRUE(Bm25({}).best("x", 2).empty());
}

// Words end at other marks than English ones, and some scripts have none between them.
TEST(Bm25, FindsWhatIsAboutTheQuestionInOtherScripts) {
  const std::vector<std::string> texts = {"Das Haus steht am See.", "Er rief: \u201EFalke\u201C, und \u00C4pfel fielen.",
                                          "\u6211\u7684\u732B\u53EB\u5C0F\u82B1\uFF0C\u5B83\u4ECA\u5E74\u4E09\u5C81\u4E86\u3002",
                                          "\u4ECA\u5929\u5929\u6C14\u5F88\u597D\u3002", "\u041C\u043E\u0441\u043A\u0432\u0430 \u0433\u043E\u0440\u043E\u0434"};
  const Bm25 index(texts);
  const auto best = [&](const char* question) { return index.best(question, 1); };
  EXPECT_EQ(best("Wer ist Falke?"), std::vector<std::size_t>{1});
  EXPECT_EQ(best("\u00E4pfel"), std::vector<std::size_t>{1});
  EXPECT_EQ(best("\u6211\u7684\u732B\u53EB\u4EC0\u4E48\u540D\u5B57\uFF1F"), std::vector<std::size_t>{2});
  EXPECT_EQ(best("\u043C\u043E\u0441\u043A\u0432\u0430?"), std::vector<std::size_t>{4});
  EXPECT_TRUE(best("\u72D7").empty());
}

TEST(LongHistory, WindowDropsWholeTurnsDownToHalf) {
  std::vector<ChatMessage> asked = messages_of(conversation(6));
  const std::vector<int> sizes(asked.size(), 10);
  // Five turns are 100; the sixth's question goes over, and down to 50 it goes.
  asked.pop_back();
  const HistoryCut cut = roll_window(asked, sizes, 100);
  EXPECT_EQ(cut.num_head, 1u);
  EXPECT_EQ(cut.num_dropped(), 6u) << "three turns";
  EXPECT_EQ(roll_window(asked, sizes, 110).num_dropped(), 0u);
  EXPECT_EQ(roll_window(asked, sizes, 1).num_dropped(), 10u) << "the last turn stays";
  EXPECT_EQ(roll_window({message_of("system", "x")}, {10}, 1).num_dropped(), 0u);
}

// Of a conversation that is to be compacted.
TEST(LongHistory, TurnsAreDroppedUpToTheLast) {
  std::vector<ChatMessage> messages = messages_of(conversation(3));
  std::vector<int> sizes(messages.size(), 10);
  HistoryCut cut = drop_turns(messages, sizes, 40);
  EXPECT_EQ(cut.num_head, 1u);
  EXPECT_EQ(cut.first_kept, 5u);
  EXPECT_FALSE(cut.unanswered);
  // The last one has more than half of it. A question that nothing has answered yet stays all the same.
  EXPECT_EQ(drop_turns(messages, sizes, 39).first_kept, messages.size());
  EXPECT_FALSE(drop_turns(messages, sizes, 39).unanswered);
  messages.back().json["tool_calls"] = Json::array({{{"id", "c"}}});
  EXPECT_EQ(drop_turns(messages, sizes, 39).unanswered, 5u);
  messages.pop_back();
  EXPECT_FALSE(drop_turns(messages, sizes, 20).unanswered) << "it is kept itself";
  // One that is the only one.
  cut = drop_turns(messages_of(conversation(1)), sizes, 1000);
  EXPECT_EQ(cut.first_kept, 3u);
  EXPECT_EQ(drop_turns(messages_of(Json::array({message("system", "x")})), sizes, 1000).num_dropped(), 0u);
}

TEST(LongHistory, AnUnansweredQuestionOutlivesItsTurn) {
  Fake fake;
  Json messages = conversation(3);
  messages.erase(messages.end() - 1);
  messages.back()["content"] = std::string(3000, 'x');
  ChatRequest chat = chat_of(messages, HistoryStrategy::kSummary, 4000);
  chat.options.history.drops_all = true;
  const auto report = fake.shorten(chat);
  ASSERT_EQ(chat.messages.size(), 2u);
  EXPECT_EQ(chat.messages[0].json["content"], "You are helpful.\n\nSummary of the conversation so far:\nSummary 1.");
  EXPECT_EQ(chat.messages[1].json, messages.back());
  EXPECT_EQ(report->num_kept_messages, 2);
  EXPECT_EQ(report->num_dropped_turns, 3);
  ASSERT_EQ(fake.asked.size(), 1u);
  EXPECT_EQ(fake.asked[0].messages.size(), messages.size() + 1) << "of all that there was";
}

TEST(LongHistory, ASummaryOnRequestIsShorterThanWhatItSumsUp) {
  const auto most = [](int num_turns, const std::string& summary = {}) {
    Fake fake;
    ChatRequest chat = chat_of(conversation(num_turns), HistoryStrategy::kSummary, 0);
    chat.summary = summary;
    chat.options.history.drops_all = true;
    const auto report = fake.shorten(chat);
    const auto num_before = static_cast<int>(fake.tokenizer.encode(summary, false, false).size());
    const int max_tokens = fake.asked.at(0).options.sampling.max_tokens;
    EXPECT_LE(max_tokens, std::max(64, report->num_dropped_tokens / 2) + num_before);
    return max_tokens - num_before;
  };
  EXPECT_LT(most(2), most(10));
  EXPECT_LT(most(10), most(40));
  // However often it is done, what was summed up before keeps its room.
  EXPECT_EQ(most(10, std::string(2'000, 'a')), most(10));
}

// What was dropped stays dropped, and while nothing is dropped the prompt only grows.
TEST(LongHistory, WindowIsTheSameFromRequestToRequest) {
  const Json all = conversation(200);
  Fake fake;
  const std::vector<int> sizes =
      measure_messages(chat_of(all, {}, 0), fake.summarizer).messages;
  std::size_t last = 1;
  int num_drops = 0;
  for (std::size_t end = 2; end <= all.size(); end += 2) {
    Json seen = Json::array();
    seen.insert(seen.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(end));
    const HistoryCut cut = roll_window(messages_of(seen), sizes, 2000);
    ASSERT_GE(cut.first_kept, last);
    num_drops += cut.first_kept > last;
    last = cut.first_kept;
  }
  EXPECT_GT(num_drops, 5);
  EXPECT_LT(num_drops, 20) << "of 200 turns";
}

// A request may end in an answer that is to be continued.
TEST(LongHistory, ALongLastAnswerIsBoundedToo) {
  const std::vector<ChatMessage> messages = messages_of(conversation(5));
  std::vector<int> sizes(messages.size(), 10);
  sizes.back() = 60;
  EXPECT_EQ(roll_window(messages, sizes, 150).num_dropped(), 0u);
  EXPECT_EQ(roll_window(messages, sizes, 149).first_kept, messages.size() - 2);
  EXPECT_EQ(roll_window(messages, sizes, 1).first_kept, messages.size() - 2)
      << "with what it answers";

  constexpr int kLimit = 2000;
  for (const auto strategy : {HistoryStrategy::kRollingWindow, HistoryStrategy::kRetrieval,
                              HistoryStrategy::kSummary}) {
    for (int num_turns = 20; num_turns < 50; ++num_turns) {
      Fake fake;
      ChatRequest chat = chat_of(conversation(num_turns), strategy, kLimit);
      const std::string question = chat.messages[chat.messages.size() - 2].json["content"];
      chat.messages.back().json["content"] = std::string(600, 'x');
      const auto report = fake.shorten(chat);
      ASSERT_LE(measure(chat), kLimit) << num_turns << " turns";
      ASSERT_EQ(chat.messages.back().json["content"], std::string(600, 'x'));
      const std::string kept = chat.messages[chat.messages.size() - 2].json["content"];
      ASSERT_TRUE(kept.ends_with(question)) << kept;
    }
  }
}

TEST(LongHistory, SizesCountWhatTheTemplateAdds) {
  Fake fake;
  const ChatRequest chat = chat_of(conversation(2), {}, 0);
  const MessageSizes sizes = measure_messages(chat, fake.summarizer);
  EXPECT_EQ(sizes.head, 16 + 10 + 3);
  EXPECT_EQ(sizes.messages[1], 15 + 10);
  const auto all = std::accumulate(sizes.messages.begin() + 1, sizes.messages.end(), sizes.head);
  EXPECT_EQ(all, measure(chat));
  fake.summarizer.measure = [](const ChatRequest&) { return std::nullopt; };
  EXPECT_GT(measure_messages(chat, fake.summarizer).head, 16) << "an estimate";
}

TEST(LongHistory, StrategiesBoundAConversationOf200Turns) {
  Fake fake;
  constexpr int kLimit = 2000;
  for (const auto strategy : {HistoryStrategy::kRollingWindow, HistoryStrategy::kRetrieval}) {
    Json messages = conversation(199);
    messages.push_back(message("user", "What is my password?"));
    ChatRequest chat = chat_of(messages, strategy, kLimit);
    const auto tokens = std::make_shared<const std::vector<TokenId>>(3, 1);
    chat.known_turns = {{2, tokens}, {messages.size() - 2, tokens}};
    const auto report = fake.shorten(chat);
    ASSERT_TRUE(report);
    EXPECT_LE(measure(chat), kLimit);
    EXPECT_GE(measure(chat), kLimit / 4);
    EXPECT_EQ(chat.messages[0].json, messages[0]);
    EXPECT_EQ(report->num_dropped_messages, 2 * report->num_dropped_turns);
    EXPECT_EQ(chat.messages.size() + static_cast<std::size_t>(report->num_dropped_messages),
              messages.size());
    EXPECT_EQ(chat.messages[0].sent_as, 0);
    EXPECT_EQ(chat.messages[1].sent_as, report->num_dropped_messages + 1);
    ASSERT_EQ(chat.known_turns.size(), 1u);
    EXPECT_EQ(chat.known_turns[0].message, chat.messages.size() - 2);
    const std::string question = chat.messages.back().json["content"];
    const bool promises = strategy == HistoryStrategy::kRetrieval;
    EXPECT_EQ(question.find("Zanzibar") != question.npos, promises) << question;
    EXPECT_TRUE(question.ends_with("What is my password?"));
    EXPECT_EQ(std::ranges::count(report->retrieved_turns, 3), promises);
  }
}

// A turn too long to be quoted whole is quoted as far as there is room.
TEST(LongHistory, LongTurnsAreRetrievedInPart) {
  Fake fake;
  Json messages = conversation(100);
  messages[5]["content"] = "The password is Zanzibar." + std::string(900, '!');
  messages.push_back(message("user", "password?"));
  ChatRequest chat = chat_of(messages, HistoryStrategy::kRetrieval, 2000);
  const auto report = fake.shorten(chat);
  EXPECT_EQ(report->retrieved_turns, std::vector<int>{3});
  EXPECT_LE(measure(chat), 2000);
  EXPECT_NE(chat.messages.back().json["content"].get<std::string>().find("Zanzibar"), std::string::npos);
}

// Each summary is asked for once, with the one before and what was dropped since.
TEST(LongHistory, SummariesAreWrittenStepByStepAndKept) {
  Fake fake;
  const Json all = conversation(100);
  std::string last;
  for (std::size_t end = 2; end <= all.size(); end += 2) {
    ChatRequest chat = chat_of(all, HistoryStrategy::kSummary, 2000);
    chat.messages.resize(end);
    const auto report = fake.shorten(chat);
    ASSERT_LE(measure(chat), 2000);
    if (report->num_dropped_messages == 0) continue;
    last = chat.messages[0].json["content"];
    ASSERT_EQ(last, "You are helpful.\n\n" + std::string(kSummaryHeading) + report->summary.text);
    ASSERT_EQ(report->summary.text, "Summary " + std::to_string(fake.asked.size()) + ".");
    ASSERT_EQ(report->kept[0], all[0]);
    ASSERT_EQ(report->summary.num_untold, 0u);
  }
  const std::vector<ChatRequest> asked = fake.asked;
  ASSERT_GT(asked.size(), 2u);
  ASSERT_LT(asked.size(), 15u);
  EXPECT_EQ(asked[0].messages[0].json["content"], "You are helpful.");
  EXPECT_EQ(asked[0].messages[1].json, all[1]);
  EXPECT_TRUE(asked[1].messages[0].json["content"].get<std::string>().ends_with("Summary 1."));
  EXPECT_EQ(asked[1].messages[1].json, all[asked[0].messages.size() - 1]) << "goes on where it ended";

  // Without the table's help all steps are made again, and come out the same.
  Fake again;
  ChatRequest chat = chat_of(all, HistoryStrategy::kSummary, 2000);
  again.shorten(chat);
  EXPECT_EQ(again.asked.size(), asked.size());
  EXPECT_EQ(chat.messages[0].json["content"], last);
}

// The model takes less than what was dropped at once, and one message alone is longer than it.
// As where it tells the time.
TEST(LongHistory, SummariesOutliveAChangeOfTheSystemPrompt) {
  Fake fake;
  ChatRequest chat = chat_of(conversation(100), HistoryStrategy::kSummary, 2000);
  fake.shorten(chat);
  const std::size_t num_asked = fake.asked.size();
  EXPECT_GT(num_asked, 2u);
  for (const char* system : {"You are helpful. It is 10:41.", "You are helpful. It is 10:42, and it rains."}) {
    ChatRequest again = chat_of(conversation(100), HistoryStrategy::kSummary, 2000);
    again.messages[0].json["content"] = system;
    EXPECT_TRUE(fake.shorten(again)->summary.text.starts_with("Summary "));
    EXPECT_EQ(fake.asked.size(), num_asked) << system;
  }
}

TEST(LongHistory, SummariesOfWhatDoesNotFitAreAskedForInPieces) {
  Fake fake(1000);
  Json messages = conversation(60);
  messages[7]["content"] = std::string(3000, '!');
  messages.push_back(message("user", "Go on."));
  ChatRequest chat = chat_of(messages, HistoryStrategy::kSummary, 900);
  const auto report = fake.shorten(chat);
  EXPECT_GT(fake.asked.size(), 3u);
  EXPECT_EQ(report->summary.num_untold, 0u);
  EXPECT_LE(measure(chat), 900);
  const auto is_quoting = [](const ChatRequest& ask) { return ask.messages.size() == 1; };
  EXPECT_TRUE(std::ranges::any_of(fake.asked, is_quoting));
}

TEST(LongHistory, AShortMessageIsQuotedBeforeALongOne) {
  Fake fake(1000);
  Json messages = conversation(60);
  messages[8]["content"] = std::string(3000, '!');  // the answer to a short question
  messages.push_back(message("user", "Go on."));
  ChatRequest chat = chat_of(messages, HistoryStrategy::kSummary, 900);
  const auto report = fake.shorten(chat);
  EXPECT_EQ(report->summary.num_untold, 0u);
  const auto quotes = [&](const std::string& text) {
    return std::ranges::any_of(fake.asked, [&](const ChatRequest& ask) {
      return ask.messages.back().json["content"].get<std::string>().find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(quotes("user: This is turn 4.\n"));
  EXPECT_TRUE(quotes("assistant: !!!!!"));
}

TEST(LongHistory, WhatCannotBeSummedUpIsDroppedWithAWord) {
  Fake fake(240);  // little more than the question takes
  ChatRequest chat = chat_of(conversation(30), HistoryStrategy::kSummary, 250);
  chat.messages.push_back(message_of("user", "Go on."));
  const auto report = fake.shorten(chat);
  EXPECT_TRUE(fake.asked.empty());
  EXPECT_EQ(report->summary.text, "");
  EXPECT_EQ(report->summary.num_untold, static_cast<std::size_t>(report->num_dropped_messages));
  EXPECT_LE(measure(chat), 250);

  // A request that has asked enough leaves the rest to the next one.
  Fake tired;
  tired.summarizer.may_ask = false;
  ChatRequest first = chat_of(conversation(60), HistoryStrategy::kSummary, 1000);
  ChatRequest second = first;
  EXPECT_GT(tired.shorten(first)->summary.num_untold, 0u);
  tired.summarizer.may_ask = true;
  EXPECT_EQ(tired.shorten(second)->summary.num_untold, 0u);
}

TEST(LongHistory, AChatWaitsAsItIsForWhatIsAskedFirst) {
  Fake fake;
  ChatRequest chat = chat_of(conversation(60), HistoryStrategy::kSummary, 1000);
  const Json before = json_of(chat.messages);
  auto report = shorten_history(chat, fake.summarizer);
  ASSERT_TRUE(report && report->to_ask);
  EXPECT_EQ(json_of(chat.messages), before);
  const Digest first = report->to_ask->key;
  ASSERT_TRUE(fake.answer(*std::move(report->to_ask)));
  report = shorten_history(chat, fake.summarizer);
  ASSERT_TRUE(report && report->to_ask) << "there are several droppings";
  EXPECT_NE(report->to_ask->key, first);
  EXPECT_TRUE(report->to_ask->chat.summary.starts_with("Summary 1"));
}

TEST(LongHistory, AnEarlierSummaryComesFirst) {
  Fake fake;
  ChatRequest chat = chat_of(conversation(60), HistoryStrategy::kSummary, 1000);
  chat.summary = "It rained.";
  fake.shorten(chat);
  const std::string system = fake.asked.at(0).messages[0].json["content"];
  EXPECT_TRUE(system.ends_with("It rained.")) << system;
  EXPECT_EQ(chat.messages[0].json["content"].get<std::string>().find("rained"), std::string::npos);

  ChatRequest window = chat_of(conversation(60), HistoryStrategy::kRollingWindow, 1000);
  window.summary = "It rained.";
  fake.shorten(window);
  EXPECT_TRUE(window.messages[0].json["content"].get<std::string>().ends_with("It rained."));
}

TEST(LongHistory, SummariesAreASystemPromptWhereThereIsNone) {
  ChatRequest chat = chat_of(Json::array({message("user", "Hi")}), {}, 0);
  put_summary(chat, "It rained.");
  EXPECT_EQ(chat.messages.size(), 2u);
  EXPECT_EQ(sent_as(chat.messages), (std::vector<int>{-1, 0}));
  EXPECT_EQ(chat.messages[0].json["role"], "system");
  EXPECT_NE(chat.messages[0].json["content"].get<std::string>().find("rained"), std::string::npos);
}

TEST(LongHistory, QuotesStandBeforeAQuestionThatFollowsOtherText) {
  ChatRequest chat = chat_of(Json::array({message("user", "You are helpful.\n\nWhat?")}), {}, 0);
  chat.messages[0].parts = {{.end = 16}, {.end = 23}};
  HistoryReport report;
  report.question = "What?";
  report.quotes = "quotes\n";
  put_quotes(chat, report);
  EXPECT_EQ(chat.messages[0].json["content"], "You are helpful.\n\nquotes\nWhat?");
  EXPECT_EQ(chat.messages[0].parts[0].end, 16u);
  EXPECT_EQ(chat.messages[0].parts[1].end, 30u);
}

TEST(LongHistory, AskingForAsManyTokensAsThereIsRoomForDropsNothingMore) {
  Fake fake(1000);
  const auto limit = [&](int history_tokens, std::optional<int> max_tokens) {
    ChatRequest chat = chat_of(conversation(3), HistoryStrategy::kRollingWindow, history_tokens);
    chat.options.has_max_tokens = max_tokens.has_value();
    if (max_tokens) chat.options.sampling.max_tokens = *max_tokens;
    return fake.shorten(chat)->options.max_tokens;
  };
  EXPECT_EQ(limit(0, std::nullopt), 750);
  EXPECT_EQ(limit(0, 1000), 750);
  EXPECT_EQ(limit(0, 100'000), 750);
  EXPECT_EQ(limit(1000, std::nullopt), 1000 - 125 - 16) << "as truncation: auto does";
  EXPECT_EQ(limit(1000, 1000), 1000 - 125 - 16);
  EXPECT_EQ(limit(1000, 400), 1000 - 400 - 16);
  EXPECT_EQ(limit(1000, 999), 250) << "the prompt keeps a quarter";
}

TEST(LongHistory, ShortOnesStayAsTheyAre) {
  Fake fake;
  ChatRequest chat = chat_of(conversation(3), HistoryStrategy::kRetrieval, 2000);
  const Json before = json_of(chat.messages);
  EXPECT_EQ(fake.shorten(chat)->num_dropped_messages, 0);
  EXPECT_EQ(json_of(chat.messages), before);
  chat.options.history.strategy = HistoryStrategy::kNone;
  EXPECT_FALSE(fake.shorten(chat));
}

}  // namespace
}  // namespace larder
