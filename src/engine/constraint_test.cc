// Answers that may not be anything.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr TokenId kEnd = 0;

// Of a tiny model: its tokens are the bytes that JSON needs, and some pieces.
std::vector<std::string> texts_of(int vocab_size) {
  std::vector<std::string> texts{""};
  for (const char* text : {"{\"", "\":", "\": ", "\",", "\"}", "}", "]", ", \"", "true", "12", "ab\"", "\"a", "b\": ["})
    texts.push_back(text);
  for (const char byte : std::string("{}[]\":,abcdefgxyz0123456789-. truefalsnu\n"))
    texts.push_back(std::string(1, byte));
  texts.resize(static_cast<std::size_t>(vocab_size));
  return texts;
}

class ConstraintTest : public testing::Test {
 protected:
  explicit ConstraintTest(int num_blocks = 400, int max_draft_tokens = 0)
      : texts_(texts_of(model_.config.vocab_size)),
        trie_(std::make_shared<const TokenTrie>(
            model_.config.vocab_size,
            [this](TokenId token) -> std::string_view { return texts_[static_cast<std::size_t>(token)]; })),
        storage_(model_.layout, num_blocks),
        transformer_(model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                     {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 240}),
        end_tokens_{kEnd},
        engine_({.num_blocks = num_blocks,
                 .max_model_len = 240,
                 .max_batch_tokens = 64,
                 .max_prefill_tokens = 64,
                 .max_step_slowdown = 0,
                 .max_draft_tokens = max_draft_tokens},
                transformer_, storage_, model_.layout, end_tokens_, clock_) {}

  std::shared_ptr<const Constraint> json(const char* schema) const {
    GrammarBuilder builder;
    JsonParts parts(builder);
    const Fragment whole = add_json_schema(parts, Json::parse(schema), "schema");
    return std::make_shared<const Constraint>(builder.finish(whole), trie_);
  }

  std::shared_ptr<const Constraint> text(const char* text) const {
    GrammarBuilder builder;
    const Fragment whole = builder.text(text);
    return std::make_shared<const Constraint>(builder.finish(whole), trie_);
  }

  std::shared_ptr<const Constraint> expression(const char* expression) const {
    GrammarBuilder builder;
    const Fragment whole = add_regex(builder, expression, TextForm::kPlain, true);
    return std::make_shared<const Constraint>(builder.finish(whole), trie_);
  }

  struct Answer {
    std::string text;
    std::vector<TokenId> tokens;
    FinishReason finish = FinishReason::kNone;
    std::optional<TokenId> stop_token;
  };

  Request request(std::shared_ptr<const Constraint> constraint, std::uint64_t seed, int max_tokens = 150) {
    Request request;
    request.prompt = random_tokens(40, 5);
    request.sampling.seed = seed;
    request.sampling.max_tokens = max_tokens;
    request.sampling.constraint = std::move(constraint);
    return request;
  }

  void submit(Request request, std::vector<Answer>& answers) {
    answers.resize(static_cast<std::size_t>(request.n));
    request.on_update = [this, &answers](RequestUpdate&& update) {
      Answer& answer = answers.at(static_cast<std::size_t>(update.choice));
      for (const OutputToken& token : update.tokens) {
        answer.tokens.push_back(token.token);
        answer.text += texts_[static_cast<std::size_t>(token.token)];
      }
      answer.finish = update.finish;
      answer.stop_token = update.stop_token;
    };
    engine_.submit(std::move(request));
  }

  Answer answer_to(Request one) {
    std::vector<Answer> answers;
    submit(std::move(one), answers);
    run();
    return answers.front();
  }

  void run() {
    while (engine_.step()) {
    }
  }

  TinyModel model_{"tiny_llama", 2};
  std::vector<std::string> texts_;
  std::shared_ptr<const TokenTrie> trie_;
  SteadyClock clock_;
  KvStorage storage_;
  Transformer transformer_;
  std::vector<TokenId> end_tokens_;
  Engine engine_;
};

constexpr const char* kSchema =
    R"({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3}}, "required": ["a"]})";

TEST_F(ConstraintTest, AnswersAreOfTheSchema) {
  const auto constraint = json(kSchema);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Answer answer = answer_to(request(constraint, seed));
    ASSERT_EQ(answer.finish, FinishReason::kStop) << answer.text;
    const Json value = Json::parse(answer.text);
    EXPECT_TRUE(value["a"].is_boolean()) << answer.text;
    EXPECT_FALSE(answer.stop_token) << "nothing may follow, so that nothing has to be drawn";
  }
}

// A random model draws anything that it may: that choices differ shows that it does.
TEST_F(ConstraintTest, ChoicesAreFreeWithinIt) {
  Request many = request(json(kSchema), 3);
  many.n = 16;
  std::vector<Answer> answers;
  submit(std::move(many), answers);
  run();
  std::set<std::string> different;
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_TRUE(Json::parse(answer.text).contains("a")) << answer.text;
    different.insert(answer.text);
  }
  EXPECT_GT(different.size(), 3u);
}

TEST_F(ConstraintTest, AHitEqualsAMiss) {
  const auto constraint = json(kSchema);
  const Answer alone = answer_to(request(constraint, 7));
  // The prompt is cached now; and beside others, whose formats are others.
  std::vector<std::vector<Answer>> answers(6);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    submit(request(i % 3 == 0 ? constraint : i % 3 == 1 ? json("true") : nullptr, i < 3 ? 7 : i, 60), answers[i]);
  }
  run();
  EXPECT_EQ(answers[0].front().tokens, alone.tokens);
}

TEST_F(ConstraintTest, TheLengthEndsItAllTheSame) {
  const Answer answer = answer_to(request(json(R"({"type": "string", "minLength": 100})"), 1, 10));
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_EQ(answer.tokens.size(), 10u);
  // Whole with its last token: it stopped.
  const Answer whole = answer_to(request(text("x"), 1, 1));
  EXPECT_EQ(whole.text, "x");
  EXPECT_EQ(whole.finish, FinishReason::kStop);
}

// What may go on may end, too: by an end token.
TEST_F(ConstraintTest, EndsByAnEndTokenWhereMoreMayFollow) {
  int num_stopped = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Answer answer = answer_to(request(json(R"({"type": "integer"})"), seed));
    num_stopped += answer.stop_token == kEnd ? 1 : 0;
    EXPECT_TRUE(Json::parse(answer.text).is_number_integer()) << answer.text;
  }
  EXPECT_GT(num_stopped, 0);
}

TEST_F(ConstraintTest, AVocabularyWithoutTheNextByteEndsIt) {
  const Answer none = answer_to(request(text("~"), 1));
  EXPECT_EQ(none.finish, FinishReason::kStuck);
  EXPECT_TRUE(none.tokens.empty());
  const Answer some = answer_to(request(text("a~"), 1));
  EXPECT_EQ(some.finish, FinishReason::kStuck);
  EXPECT_EQ(some.text, "a");
}

// Of eighty parts of any length, a text of so many letters may be at each of their letters.
TEST_F(ConstraintTest, TooManyPlacesAtOnceEndItAndNoLengthIsBlamed) {
  const Answer answer = answer_to(request(expression("([a-z]{1,90}){80,90}"), 1));
  EXPECT_EQ(answer.finish, FinishReason::kStuck);
  EXPECT_GT(answer.text.size(), 40u);
  EXPECT_LT(answer.text.size(), 80u);
}

TEST_F(ConstraintTest, BiasDoesNotLeadOutOfIt) {
  for (const float bias : {-100.0f, 100.0f}) {
    Request one = request(json(kSchema), 2);
    for (TokenId token = 0; token < model_.config.vocab_size; token += 2)
      one.sampling.logit_bias.emplace_back(token, bias);
    const Answer answer = answer_to(std::move(one));
    if (answer.finish == FinishReason::kStop) {
      EXPECT_TRUE(Json::parse(answer.text).contains("a")) << answer.text;
    }
    EXPECT_FALSE(answer.text.empty());
  }
}

TEST_F(ConstraintTest, GreedyTopKAndTopPStayWithinIt) {
  for (const int kind : {0, 1, 2, 3}) {
    Request one = request(json(R"({"enum": ["abc", "abd", "bcd"]})"), 4);
    if (kind == 0) one.sampling.temperature = 0;
    if (kind == 1) one.sampling.top_k = 40;
    if (kind == 2) one.sampling.top_p = 0.3f;
    if (kind == 3) one.sampling.min_p = 0.5f;
    one.sampling.num_logprobs = 2;
    const Answer answer = answer_to(std::move(one));
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_TRUE(Json::parse(answer.text).is_string()) << answer.text;
  }
}

TEST_F(ConstraintTest, OthersThatSayWhenItEndsAreRefused) {
  const auto param = [&](const std::function<void(SamplingParams&)>& change) -> std::string {
    Request one = request(json("true"), 1);
    change(one.sampling);
    try {
      engine_.submit(std::move(one));
    } catch (const Error& error) {
      return error.param();
    }
    return "";
  };
  EXPECT_EQ(param([](SamplingParams& params) { params.min_tokens = 3; }), "min_tokens");
  EXPECT_EQ(param([](SamplingParams& params) { params.ignore_eos = true; }), "ignore_eos");
}

// Whoever gives up its blocks and comes back goes on where its text was.
class CrampedConstraintTest : public ConstraintTest {
 protected:
  CrampedConstraintTest() : ConstraintTest(16) {}
};

TEST_F(CrampedConstraintTest, PreemptionChangesNothing) {
  const auto constraint = json(R"({"type": "string", "minLength": 180, "maxLength": 190})");
  const Answer alone = answer_to(request(constraint, 11));
  std::vector<std::vector<Answer>> answers(5);
  for (std::size_t i = 0; i < answers.size(); ++i) submit(request(constraint, 11 + i % 2), answers[i]);
  run();
  EXPECT_GT(engine_.stats().num_preemptions, 0u);
  for (std::size_t i = 0; i < answers.size(); i += 2) EXPECT_EQ(answers[i].front().tokens, alone.tokens);
}

// What has to follow is guessed, and what followed before; guesses are held to the form as well as draws are.
class GuessedConstraintTest : public ConstraintTest {
 protected:
  GuessedConstraintTest() : ConstraintTest(400, 8) {}

  // All that they hear, over and over, so that all kinds of guesses are made.
  static std::vector<std::vector<TokenId>> hear(ConstraintTest& test) {
    GuessedConstraintTest& rig = static_cast<GuessedConstraintTest&>(test);
    std::vector<std::vector<TokenId>> heard;
    const auto constraint = rig.json(kSchema);
    const auto text = rig.json(R"({"enum": ["abcabcabcabcdefg", "abcabcabcabcfged", "gggg"]})");
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      const auto& one = seed % 3 == 0 ? constraint : text;
      Request asked = rig.request(one, seed / 6);
      if (seed % 5 == 0) asked.sampling.temperature = 0;
      asked.n = seed % 7 == 0 ? 3 : 1;
      std::vector<Answer> answers;
      rig.submit(std::move(asked), answers);
      rig.run();
      for (const Answer& answer : answers) heard.push_back(answer.tokens);
    }
    return heard;
  }
};

class UnguessedConstraintTest : public ConstraintTest {
 public:
  void TestBody() override {}
};

TEST_F(GuessedConstraintTest, GuessesChangeNothing) {
  UnguessedConstraintTest plain;
  EXPECT_EQ(hear(*this), hear(plain));
  const DraftStats drafts = engine_.stats().drafts;
  EXPECT_GT(drafts.num_accepted, 50u);
}

}  // namespace
}  // namespace larder
