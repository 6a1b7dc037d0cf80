// A tiny random model, and the engine's parts around it, driven step by step.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "engine/draft_model.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "kv/cache/kv_cache.h"
#include "kv/kv_test_support.h"
#include "model/forward/key_calibration.h"
#include "model/forward/transformer.h"

namespace larder {

inline std::vector<TokenId> random_tokens(int num_tokens, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (int i = 0; i < num_tokens; ++i) tokens.push_back(static_cast<TokenId>(random() % 120));
  return tokens;
}

inline SamplingParams greedy(int max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

inline std::map<TokenId, std::int32_t> all_of(const TokenCounts& seen) {
  std::map<TokenId, std::int32_t> all;
  seen.for_each([&](TokenId token, std::int32_t count) { EXPECT_TRUE(all.emplace(token, count).second) << token; });
  return all;
}

struct TinyModel {
  explicit TinyModel(const std::string& name, int num_threads = 1, KvTypes types = {}, Device* device = nullptr)
      : file(name.starts_with('/') ? name
                                   : LARDER_SOURCE_DIR "/tests/golden/model/" + name + ".gguf"),
        gguf(file.bytes()),
        config(read_model_config(gguf)),
        pool(num_threads),
        weights(config, gguf, pool, {}, device),
        layout(kv_layer_shapes(config), types) {
    if (has_codes(types.k))
      layout.set_key_basis(
          calibrate_keys(config, weights, select_kernels(), pool, random_tokens(100, 77)));
  }

  MappedFile file;
  GgufFile gguf;
  ModelConfig config;
  ThreadPool pool;
  Weights weights;
  KvLayout layout;
};

// What one choice heard.
struct Heard {
  std::vector<TokenId> tokens;
  std::vector<OutputToken> output;
  std::vector<OutputToken> prompt_logprobs;
  std::vector<std::vector<float>> logits;  // of each draw
  std::vector<int> steps;                  // in which each token came
  FinishReason finish = FinishReason::kNone;
  std::optional<TokenId> stop_token;
  RequestUsage usage;
  CacheFacts cache;
  int num_updates = 0;
};

// Request, choice.
using HeardByChoice = std::map<std::pair<std::uint64_t, int>, Heard>;

struct RigConfig {
  int num_blocks = 4000;
  int max_batch_tokens = 512;
  int max_prefill_tokens = 128;
  int max_sequences = 256;
  int max_logit_rows = 64;
  int max_model_len = 240;
  const KernelTable* kernels = nullptr;  // the machine's best
  AttentionSpan attention = {};          // of every request
  double max_step_slowdown = 0;          // above 0: prompts are computed in chunks, beside decodes or if long
  int num_layers_per_step = 1;           // of a chunk
  std::int64_t token_ns = 1'000'000;     // what a token seems to take
  std::int64_t layer_token_ns = 20'000;  // of a chunk: a decode's room is less than a prompt's token, but a layer fits
  std::vector<KvTier*> tiers = {};       // not owned; they answer by themselves
  Device* device = nullptr;              // where the model's weights are, with its kernels
  int max_draft_tokens = 0;
  std::int64_t guess_ns = 0;  // what a guess seems to take
  TinyModel* draft_model = nullptr;
  int num_draft_blocks = 1000;
};

// A model that guesses, with all that it needs.
class DraftRig {
 public:
  // vocab_size: of the model that it guesses for; 0 = its own.
  DraftRig(TinyModel& of, int num_blocks, const Clock& clock, int vocab_size = 0, int max_context_len = 400)
      : storage_(of.layout, num_blocks),
        transformer_(of.config, of.weights, of.layout, select_kernels(), of.pool,
                     {.max_batch_tokens = DraftModel::kMaxBatchTokens,
                      .max_logit_rows = DraftModel::kMaxLogitRows,
                      .max_context_len = max_context_len}),
        drawer_(vocab_size > 0 ? vocab_size : of.config.vocab_size, of.pool.num_threads(), {}),
        model({transformer_, storage_, of.layout}, drawer_, clock) {}

 private:
  KvStorage storage_;
  Transformer transformer_;
  TokenDrawer drawer_;

 public:
  DraftModel model;
};

// A tier that somebody else owns.
class BorrowedTier final : public KvTier {
 public:
  explicit BorrowedTier(KvTier& tier) : tier_(tier) {}
  const char* name() const override { return tier_.name(); }
  bool put(const TierBlock& block, std::span<const std::byte> bytes) override {
    return tier_.put(block, bytes);
  }
  bool touch(const TierBlock& block) override { return tier_.touch(block); }
  std::int64_t touch_interval_ns() const override { return tier_.touch_interval_ns(); }
  TierPresence presence(const TierBlock& block) const override { return tier_.presence(block); }
  bool has_lost(const TierBlock& block) const override { return tier_.has_lost(block); }
  void get(TierRead read) override { tier_.get(std::move(read)); }
  double estimate_read_seconds(std::int64_t num_blocks) const override {
    return tier_.estimate_read_seconds(num_blocks);
  }
  TierStats stats() const override { return tier_.stats(); }
  bool takes_writes() const override { return tier_.takes_writes(); }

 private:
  KvTier& tier_;
};

inline std::unique_ptr<KvTiers> borrow_tiers(const std::vector<KvTier*>& tiers, KvStorage& storage,
                                             const KvLayout& layout) {
  if (tiers.empty()) return nullptr;
  std::vector<std::unique_ptr<KvTier>> borrowed;
  for (KvTier* tier : tiers) borrowed.push_back(std::make_unique<BorrowedTier>(*tier));
  return std::make_unique<KvTiers>(std::move(borrowed), storage, layout.block_size_bytes(), 0);
}

// Whoever looks at it makes time pass, and on_look is called, until it says that it has done its part.
class TickingClock final : public Clock {
 public:
  std::int64_t now_ns() const override {
    now_ns_ += 50'000'000;
    // Its part may look, too.
    if (auto hook = std::exchange(on_look, nullptr); hook != nullptr && !hook()) on_look = hook;
    return now_ns_;
  }

  mutable std::function<bool()> on_look;

 private:
  mutable std::int64_t now_ns_ = 0;
};

// What Engine::step does, with every row of logits kept.
class Rig {
 public:
  static constexpr int kMaxModelLen = 240;  // RigConfig's default

  Rig(TinyModel& model, const RigConfig& config)
      : storage_(model.layout, config.num_blocks, config.device),
        tiers_(borrow_tiers(config.tiers, storage_, model.layout)),
        cache(model.layout, storage_, clock,
              {.num_blocks = config.num_blocks, .tiers = tiers_.get()}),
        transformer_(model.config, model.weights, model.layout,
                     config.kernels != nullptr ? *config.kernels : select_kernels(), model.pool,
                     {.max_batch_tokens = config.max_batch_tokens,
                      .max_logit_rows = std::min(config.max_logit_rows, config.max_batch_tokens),
                      .max_context_len = config.max_model_len},
                     config.device),
        runner_(transformer_, storage_),
        sampler_(model.config.vocab_size),
        draft_rig(config.draft_model == nullptr
                  ? nullptr
                  : std::make_unique<DraftRig>(*config.draft_model, config.num_draft_blocks, clock)),
        scheduler(
            {.max_model_len = config.max_model_len,
             .max_batch_tokens = config.max_batch_tokens,
             .max_logit_rows = std::min(config.max_logit_rows, config.max_batch_tokens),
             .max_sequences = config.max_sequences,
             .max_prefill_tokens = std::min(config.max_prefill_tokens, config.max_batch_tokens),
             .max_chunk_tokens = config.max_batch_tokens,
             .max_step_slowdown = config.max_step_slowdown,
             .max_draft_tokens = config.max_draft_tokens},
            cache, {}, clock, draft_rig == nullptr ? nullptr : &draft_rig->model),
        attention(config.attention),
        num_layers_per_step_(config.num_layers_per_step),
        token_ns_(config.token_ns),
        layer_token_ns_(config.layer_token_ns),
        guess_ns_(config.guess_ns) {}

  std::uint64_t add(std::vector<TokenId> prompt, SamplingParams params, int n = 1,
                    int priority = 0) {
    Request request;
    const std::uint64_t id = request.id = ++num_requests_;
    request.prompt = std::move(prompt);
    request.sampling = std::move(params);
    request.n = n;
    request.priority = priority;
    request.tenant = tenant;
    request.pins = pins;
    request.attention_window = attention.window;
    request.attention_sinks = attention.num_sinks;
    request.on_update = [this, id](RequestUpdate&& update) { hear(id, std::move(update)); };
    const std::uint64_t seed = request.sampling.seed.value_or(0);
    scheduler.add(std::move(request), seed, 0);
    return id;
  }

  bool step() {
    scheduler.poll_tiers();
    const Batch& batch = scheduler.schedule();
    const Chunk& chunk = scheduler.chunk();
    if (batch.empty() && chunk.empty()) return scheduler.is_loading();
    ++num_steps;
    if (!chunk.empty() && !chunk.rests) advance(chunk);
    if (batch.empty()) return true;
    num_computed += batch.num_tokens();
    most_tokens = std::max(most_tokens, batch.num_tokens());
    BatchResults results = draw(batch, runner_.forward(batch));
    scheduler.commit(batch, results);
    scheduler.observe_step(batch, token_ns_ * (batch.num_tokens() - batch.num_guesses()) +
                                      guess_ns_ * batch.num_guesses());
    return true;
  }

  // Steps until nothing is left. Returns what the choice heard.
  void run() {
    while (step()) {
    }
  }

 private:
  void advance(const Chunk& chunk) {
    Logits logits;
    for (int i = 0; i < num_layers_per_step_; ++i) {
      logits = runner_.forward_layer(chunk.batch, chunk.num_layers);
      scheduler.passed_layer(layer_token_ns_ * chunk.batch.num_tokens());
      if (chunk.num_layers < transformer_.config().num_layers()) continue;
      ++num_chunks;
      num_computed += chunk.batch.num_tokens();
      BatchResults results = draw(chunk.batch, logits);
      return scheduler.commit_chunk(results);
    }
  }

  BatchResults draw(const Batch& batch, const Logits& logits) {
    BatchResults results;
    const int vocab_size = transformer_.config().vocab_size;
    for (const BatchEntry& entry : batch.entries()) {
      const ActiveRequest& request = *entry.sequence->request;
      std::vector<TokenId> tokens = entry.sequence->tokens;
      const auto num_prompt = static_cast<std::size_t>(request.num_prompt);
      for (int i = 0; i < entry.num_prompt_logits; ++i) {
        const int logit = entry.first_logit + i;
        const auto row =
            static_cast<std::size_t>(batch.logit_rows()[static_cast<std::size_t>(logit)]);
        const auto next = static_cast<std::size_t>(batch.positions()[row] + 1);
        results.prompt_logprobs.push_back(
            sampler_.score(logits.row(logit, vocab_size).values, {}, tokens[next], 2));
      }
      const std::vector<DraftToken>& draft = entry.sequence->draft.tokens;
      num_guesses += entry.num_guesses;
      bool came_true = true;
      for (int i = 0; i < entry.num_samples + entry.num_guesses; ++i) {
        const int guessed = entry.num_guesses == 0 ? 0 : i;
        if (guessed > 0) {
          const TokenId guess = draft.at(static_cast<std::size_t>(guessed - 1)).token;
          came_true = came_true && results.samples.back().token == guess;
          if (!came_true) {
            results.samples.emplace_back();
            continue;
          }
          tokens.push_back(guess);
        }
        const Logits row = logits.row(entry.first_logit + entry.num_prompt_logits + guessed, vocab_size);
        const int choice = entry.sequence->choice + i - guessed;
        // As if all had been counted now; the sequence has done so as it went.
        const std::span<const TokenId> all(tokens);
        const TokenCounts seen(all.first(num_prompt), all.subspan(num_prompt));
        if (guessed == 0 && Sampler::penalizes(request.request.sampling))
          CHECK(all_of(*entry.sequence->seen) == all_of(seen), request.request.id, choice);
        results.samples.push_back(sampler_.sample(row.values, row.maxima,
                                                  {.params = request.request.sampling,
                                                   .seen = &seen,
                                                   .num_output = tokens.size() - num_prompt,
                                                   .end_tokens = {},
                                                   .seed = request.seed,
                                                   .choice = choice}));
        heard[{request.request.id, choice}].logits.emplace_back(row.values.begin(),
                                                                row.values.end());
      }
    }
    return results;
  }

  void hear(std::uint64_t id, RequestUpdate&& update) {
    Heard& choice = heard[{id, update.choice}];
    if (choice.num_updates == 0) choice.cache = std::move(update.cache);
    ++choice.num_updates;
    for (OutputToken& token : update.tokens) {
      choice.tokens.push_back(token.token);
      choice.steps.push_back(num_steps);
      choice.output.push_back(std::move(token));
    }
    if (update.prompt_logprobs != nullptr) choice.prompt_logprobs = *update.prompt_logprobs;
    choice.finish = update.finish;
    choice.stop_token = update.stop_token;
    choice.usage = update.usage;
  }

 public:
  ManualClock clock;

 private:
  KvStorage storage_;
  std::unique_ptr<KvTiers> tiers_;

 public:
  KvCache cache;

 private:
  Transformer transformer_;
  ModelRunner runner_;
  Sampler sampler_;
  std::uint64_t num_requests_ = 0;

 public:
  const std::unique_ptr<DraftRig> draft_rig;  // null = none
  Scheduler scheduler;
  HeardByChoice heard;
  int num_steps = 0;
  int num_computed = 0;
  int most_tokens = 0;
  int num_chunks = 0;
  int num_guesses = 0;
  AttentionSpan attention;
  std::vector<PromptPin> pins;  // of requests to come
  std::uint64_t tenant = 0;  // likewise

 private:
  const int num_layers_per_step_;
  const std::int64_t token_ns_;
  const std::int64_t layer_token_ns_;
  const std::int64_t guess_ns_;
};

inline bool same_bits(const Heard& left, const Heard& right) {
  if (left.tokens != right.tokens || left.logits.size() != right.logits.size()) return false;
  for (std::size_t i = 0; i < left.logits.size(); ++i) {
    const auto& a = left.logits[i];
    const auto& b = right.logits[i];
    if (a.size() != b.size() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace larder
