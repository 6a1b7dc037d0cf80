// larder bench: tokens per second, and what the cache makes of the first token.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/local_client.h"
#include "cli/runtime.h"
#include "kv/tier.h"

namespace larder {
namespace {

constexpr int kMostToSave_s = 30;  // for tiers to store a prompt

struct BenchOptions {
  // Random tokens soon repeat themselves: what is guessed of those says nothing.
  BenchOptions() { runtime.max_draft_tokens = 0; }

  RuntimeOptions runtime;
  std::vector<int> prompts = {512, 4096};
  std::vector<int> outputs = {128};
  std::vector<int> depths;   // tokens before those that are generated
  std::vector<int> batches;  // sequences that decode at once
  int repetitions = 3;
  bool tiers = false;
  bool made_up = false;
};

// Has every block, with bytes that stand for ordinary numbers in every KV type: what a context costs
// to read does not depend on what it says, and computing 32,768 tokens takes many minutes.
class MadeUpTier final : public KvTier {
 public:
  const char* name() const override { return "made up"; }
  bool put(const TierBlock&, std::span<const std::byte>) override { return true; }
  TierPresence presence(const TierBlock&) const override { return TierPresence::kPresent; }
  void get(TierRead read) override {
    std::ranges::fill(read.bytes, std::byte{0x2E});
    read.done({.num_found = static_cast<int>(read.blocks.size())});
  }
  double estimate_read_seconds(std::int64_t) const override { return 0; }
  TierStats stats() const override { return {}; }
};

struct Measured {
  double mean = 0;
  double deviation = 0;
};

Measured summarize(const std::vector<double>& values) {
  Measured result;
  for (const double value : values) result.mean += value / static_cast<double>(values.size());
  for (const double value : values)
    result.deviation += (value - result.mean) * (value - result.mean);
  if (values.size() > 1)
    result.deviation = std::sqrt(result.deviation / static_cast<double>(values.size() - 1));
  else
    result.deviation = 0;
  return result;
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), runtime_(options.runtime) {}

  void run() {
    print_start(runtime_);
    request(std::min(64, runtime_.plan().max_model_len - 8), 8, next_salt());
    std::puts("| model | size | params | backend | threads | test | t/s |");
    std::puts("| --- | ---: | ---: | --- | ---: | ---: | ---: |");
    for (const int length : computed_prompts())
      if (fits("pp", length, 1)) row(fmt::format("pp{}", length), prefill_rates(length));
    for (const int length : options_.outputs)
      if (fits("tg", 1, length)) row(fmt::format("tg{}", length), decode_rates(length));
    for (const int depth : options_.depths)
      for (const int length : options_.outputs)
        if (fits("depth ", depth, length + 1))
          row(fmt::format("tg{} @ d{}", length, depth), decode_rates(length, depth));
    for (const int batch : options_.batches)
      for (const int depth : fitting_depths(batch)) batch_rows(batch, depth);
    if (!computed_prompts().empty()) {
      std::puts("\n| prompt | cold TTFT, ms | warm TTFT, ms | cached tokens, warm | cold |");
      std::puts("| ---: | ---: | ---: | ---: | ---: |");
    }
    for (const int length : computed_prompts())
      if (fits("pp", length, 1)) ttft_row(length);
    if (options_.tiers) tier_rows();
  }

 private:
  // The prompts to time; none where they would be made up.
  std::vector<int> computed_prompts() const {
    return options_.made_up ? std::vector<int>{} : options_.prompts;
  }

  // Random tokens: the cost does not depend on what they mean. A salt of its own keeps a run cold.
  std::vector<TokenId> random_tokens(int length) {
    std::uniform_int_distribution<TokenId> any(0, runtime_.config().vocab_size - 1);
    std::vector<TokenId> tokens(static_cast<std::size_t>(length));
    for (TokenId& token : tokens) token = any(random_);
    return tokens;
  }

  Completion request(int prompt, int output, const std::string& salt) {
    return request(random_tokens(prompt), output, salt);
  }

  Completion request(std::vector<TokenId> prompt, int output, const std::string& salt) {
    return begin(std::move(prompt), output, salt).wait();
  }

  PendingCompletion begin(std::vector<TokenId> prompt, int output, const std::string& salt) {
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = output;
    sampling.ignore_eos = true;
    return {runtime_, std::move(prompt), sampling, salt};
  }

  bool fits(const char* test, int prompt, int output) const {
    const int longest = runtime_.max_request_len();
    if (prompt + output <= longest) return true;
    std::fprintf(stderr, "%s%d: longer than the %d tokens that fit, left out\n", test,
                 std::max(prompt, output), longest);
    return false;
  }

  // Where a batch takes turns in decoding, its rate would be that of a smaller one.
  std::vector<int> fitting_depths(int batch) const {
    if (batch <= runtime_.max_decodes())
      return options_.depths.empty() ? std::vector{1} : options_.depths;
    std::fprintf(stderr, "--batch %d: more than the %d that decode in one step, left out\n", batch,
                 runtime_.max_decodes());
    return {};
  }

  std::vector<double> prefill_rates(int length) {
    std::vector<double> rates;
    for (int i = 0; i < options_.repetitions; ++i)
      rates.push_back(length / request(length, 1, next_salt()).prefill_seconds());
    return rates;
  }

  std::vector<double> decode_rates(int length) {
    std::vector<double> rates;
    for (int i = 0; i < options_.repetitions; ++i)
      rates.push_back(request(1, length + 1, next_salt()).decode_rate());
    return rates;
  }

  // The depth is computed once and found in the cache again.
  std::vector<double> decode_rates(int length, int depth) {
    const std::vector<TokenId> prompt = random_tokens(depth);
    const std::string salt = next_salt();
    std::vector<double> rates;
    for (int i = 0; i < options_.repetitions; ++i)
      rates.push_back(request(prompt, length + 1, salt).decode_rate());
    return rates;
  }

  void batch_rows(int batch, int depth) {
    for (const int length : options_.outputs) {
      if (!fits("depth ", depth, length + 1)) continue;
      const std::string test = fmt::format("{} x tg{} @ d{}", batch, length, depth);
      const int window = runtime_.attention().window;
      if (batch > 1 && window > 0 && depth > window) {
        // The rest would be computed while others decode.
        std::fprintf(stderr, "%s: the cache finds no more than the window of %d, left out\n", test.c_str(), window);
        continue;
      }
      if (std::int64_t{batch} * (depth + length + 2 * kBlockSize) >
          runtime_.plan().kv_capacity_tokens) {
        std::fprintf(stderr, "%s: more than the KV cache holds, left out\n", test.c_str());
        continue;
      }
      row(test, batch_rates(batch, length, depth));
    }
  }

  // Of all sequences together. Their contexts differ, and are found in the cache, so that all decode
  // from the same step on.
  std::vector<double> batch_rates(int batch, int length, int depth) {
    const std::string salt = next_salt();
    std::vector<std::vector<TokenId>> prompts;
    for (int i = 0; i < batch; ++i) {
      prompts.push_back(random_tokens(depth));
      request(prompts.back(), 1, salt);
    }
    std::vector<double> rates;
    // The first steps of so many sequences are slower on a GPU, which does not know them as graphs yet.
    const int num_unmeasured = runtime_.device() != nullptr ? 1 : 0;
    for (int repetition = -num_unmeasured; repetition < options_.repetitions; ++repetition) {
      std::vector<PendingCompletion> pending;
      for (const std::vector<TokenId>& prompt : prompts)
        pending.push_back(begin(prompt, length + 1, salt));
      std::int64_t begin_ns = std::numeric_limits<std::int64_t>::max(), end_ns = 0;
      for (PendingCompletion& one : pending) {
        const RequestTimes times = one.wait().times;
        begin_ns = std::min(begin_ns, times.first_token_ns);
        end_ns = std::max(end_ns, times.last_token_ns);
      }
      const double duration_ns = static_cast<double>(std::max<std::int64_t>(1, end_ns - begin_ns));
      if (repetition >= 0) rates.push_back(static_cast<double>(batch) * length * 1e9 / duration_ns);
    }
    return rates;
  }

  void row(const std::string& test, const std::vector<double>& rates) const {
    const ModelConfig& config = runtime_.config();
    const Measured rate = summarize(rates);
    std::printf("| %s | %s | %.2f M | %s | %d | %s | %.2f ± %.2f |\n", config.name.c_str(),
                format_bytes(runtime_.file().file_bytes).c_str(), num_parameters() / 1e6,
                runtime_.kernels().name, runtime_.num_threads(), test.c_str(), rate.mean,
                rate.deviation);
    std::fflush(stdout);
  }

  void ttft_row(int length) {
    const std::vector<TokenId> prompt = random_tokens(length);
    const std::string salt = next_salt();
    const Completion cold = request(prompt, 1, salt);
    const Completion warm = request(prompt, 1, salt);
    std::printf("| %d | %.1f | %.1f | %d | %d |\n", length, cold.first_token_seconds() * 1e3,
                warm.first_token_seconds() * 1e3, warm.usage.num_cached_tokens,
                cold.usage.num_cached_tokens);
  }

  // The same prompt computed, then found in the pool, then, with the pool forgotten, in the tiers.
  void tier_rows() {
    std::puts("\n| prompt | from | tokens | TTFT, ms | of computing |");
    std::puts("| ---: | --- | ---: | ---: | ---: |");
    for (const int length : options_.prompts) {
      if (!fits("pp", length, 1)) continue;
      const std::vector<TokenId> prompt = random_tokens(length);
      const std::string salt = next_salt();
      const Completion cold = request(prompt, 1, salt);
      const double computing = cold.first_token_seconds();
      tier_row("computing", cold, computing);
      tier_row("pool", request(prompt, 1, salt), computing);
      const bool is_saved = wait_until_saved();
      runtime_.engine().reset_prefix_cache();
      const auto before = runtime_.engine().stats().num_loaded_by_tier;
      const Completion loaded = request(prompt, 1, salt);
      const EngineStats stats = runtime_.engine().stats();
      std::string from;
      for (std::size_t i = 0; i < before.size(); ++i)
        if (stats.num_loaded_by_tier[i] > before[i])
          from += fmt::format("{}{}", from.empty() ? "" : ", ", stats.tier_names[i]);
      if (from.empty())
        from = is_saved ? "nowhere: computing was cheaper" : fmt::format("nowhere: not saved in {} s", kMostToSave_s);
      tier_row(from, loaded, computing);
    }
  }

  void tier_row(const std::string& from, const Completion& completion, double computing) const {
    std::printf("| %d | %s | %d | %.1f | %.4f |\n", completion.usage.num_prompt_tokens, from.c_str(),
                completion.usage.num_cached_tokens, completion.first_token_seconds() * 1e3,
                completion.first_token_seconds() / computing);
    std::fflush(stdout);
  }

  bool wait_until_saved() {
    const auto is_saved = [&] {
      const EngineStats stats = runtime_.engine().stats();
      std::int64_t num_waiting = stats.kv.num_unsaved;
      for (const TierStats& tier : stats.tiers) num_waiting += tier.num_pending;
      return num_waiting == 0;
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kMostToSave_s);
    while (!is_saved()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  double num_parameters() const {
    const ModelConfig& c = runtime_.config();
    const double hidden = c.hidden_size;
    double sum = c.vocab_size * hidden * (c.tied_embeddings ? 1 : 2);
    for (const LayerConfig& layer : c.layers) {
      sum += hidden * c.o_size() + attention_parameters(c);
      sum += layer.has_experts ? hidden * (c.experts.num_experts * (3.0 * c.experts.ffn_size + 1) + 3.0 * c.experts.shared_ffn_size)
                               : 3.0 * hidden * c.ffn_size;
    }
    return sum;
  }

  // Of a layer's queries, keys and values.
  static double attention_parameters(const ModelConfig& c) {
    const double hidden = c.hidden_size;
    if (c.latent.rank == 0) return hidden * (c.q_size() + 2.0 * c.kv_size());
    const double q_size = static_cast<double>(c.num_heads) * (c.latent.nope_dim + c.rope_dim);
    const double queries = c.latent.q_rank > 0 ? c.latent.q_rank * (hidden + q_size) : hidden * q_size;
    return queries + hidden * c.head_dim +
           static_cast<double>(c.num_heads) * c.latent.rank * (c.latent.nope_dim + c.latent.value_dim);
  }

  // The tiers still have what an earlier bench left there.
  std::string next_salt() { return fmt::format("bench {} {}", run_id_, num_salts_++); }

  const BenchOptions& options_;
  Runtime runtime_;
  std::mt19937 random_{1};
  const unsigned run_id_ = std::random_device{}();
  int num_salts_ = 0;
};

}  // namespace

void add_bench_command(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand(
      "bench", "Tokens per second in prefill and decode, time to first token cold and warm");
  add_runtime_options(*command, options->runtime);
  command->add_option("--pp", options->prompts, "Lengths of prompts (default 512 4096)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--tg", options->outputs, "Tokens to generate (default 128)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("-d,--depth", options->depths,
                      "Tokens in the context before --tg, such as 512 8192 32768 (default: none)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--batch", options->batches,
                      "Sequences that decode at once, such as 1 4 16 64, as many as a step takes, behind "
                      "each depth; the rate is of all together (default: none)")
      ->check(CLI::Range(1, 256));
  command->add_flag("--made-up", options->made_up,
                    "Make up the KV of prompts in place of computing it, to get to long depths "
                    "soon; prompts are not timed");
  command->add_option("-r,--repetitions", options->repetitions, "Runs of each test (default 3)")
      ->check(CLI::Range(1, 1000));
  command->add_flag("--tiers", options->tiers,
                    "Also time to first token from --kv-disk or --kv-remote, against computing");
  command->callback([options, command] {
    RuntimeOptions& runtime = options->runtime;
    if (!runtime.draft_model.empty() && command->count("--draft-tokens") == 0)
      runtime.max_draft_tokens = RuntimeOptions{}.max_draft_tokens;
    const bool has_tier = !runtime.kv_host.empty() || !runtime.kv_disk.empty() || !runtime.kv_remote.empty();
    if (options->made_up && (options->tiers || has_tier))
      throw_invalid(
          "--made-up: nothing made up may get to --tiers, --kv-host, --kv-disk or --kv-remote; leave these "
          "out");
    if (options->tiers && !has_tier)
      throw_invalid("--tiers: there is none; add --kv-disk DIR or --kv-remote redis://HOST:PORT");
    if (options->made_up)
      options->runtime.make_tier = [] { return std::make_unique<MadeUpTier>(); };
    Bench(*options).run();
  });
}

}  // namespace larder
