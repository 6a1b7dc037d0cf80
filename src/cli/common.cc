// What several commands share.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/runtime.h"
#include "kv/kv_type_names.h"

namespace larder {

double number_in(const std::string& text) {
  double value = 0;
  return CLI::detail::lexical_cast(text, value) ? value : std::numeric_limits<double>::quiet_NaN();
}

CLI::Validator finite_range(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        const double value = number_in(text);
        return value >= least && value <= most
                   ? std::string()
                   : fmt::format("Value {} not in range {:g} to {:g}", text, least, most);
      },
      fmt::format("FLOAT in [{:g} - {:g}]", least, most));
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("must not be empty; give a value, or leave the option out")
                            : std::string();
      },
      "");
}

// CLI11 alone would take what is larger for the largest.
static std::string why_no_seed(const std::string& text) {
  const char* end = text.data() + text.size();
  const auto is_read_as = [&](auto value) {
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc{} && stop == end;
  };
  return is_read_as(std::int64_t{}) || is_read_as(std::uint64_t{}) ? "" : "must be a whole number of 64 bits";
}

void add_sampling_options(CLI::App& command, SamplingParams& sampling) {
  command.add_option("-n,--max-tokens", sampling.max_tokens, "Tokens to generate, at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--temperature,--temp", sampling.temperature, "0 = always the likeliest token")
      ->check(finite_range(0, 100))
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Draw from the likeliest tokens that sum to this")
      ->check(CLI::Validator(
          [](std::string& text) {
            const double value = number_in(text);
            return value > 0 && value <= 1 ? std::string() : "must be above 0, at most 1, not " + text;
          },
          "above 0, at most 1"))
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Draw from the k likeliest tokens, 0 = all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Drop tokens below this share of the likeliest's")
      ->check(finite_range(0, 1))
      ->capture_default_str();
  command.add_option("--repetition-penalty", sampling.repetition_penalty, "Above 1: fewer repeats")
      ->check(finite_range(0.01, 100))
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, "The same seed gives the same text")
      ->check(CLI::Validator([](std::string& text) { return why_no_seed(text); }, ""));
}

void print_start(const Runtime& runtime) {
  const Plan& plan = runtime.plan();
  const ModelConfig& config = runtime.config();
  const Footprint& footprint = plan.footprint;
  std::fprintf(stderr, "Machine: %s kernels, %d threads\n", runtime.kernels().name,
               runtime.num_threads());
  if (runtime.device() != nullptr)
    std::fprintf(stderr, "Device: %s\n", runtime.device()->describe().c_str());
  std::fprintf(stderr, "Model: %s (%d layers, hidden %d, %d/%d heads, vocabulary %d)\n",
               config.name.empty() ? runtime.file().path.c_str() : config.name.c_str(),
               config.num_layers(), config.hidden_size, config.num_heads, config.num_kv_heads,
               config.vocab_size);
  if (runtime.workers() != nullptr)
    std::fprintf(stderr, "Workers: %s\n", describe_shares(*runtime.workers()).c_str());
  const std::string draft = plan.draft_bytes() > 0 ? " + draft model " + format_bytes(plan.draft_bytes()) : "";
  std::fprintf(stderr, "Memory: %s = weights %s + KV %s + scratch %s + process %s%s\n",
               format_bytes(plan.total_bytes()).c_str(),
               format_bytes(footprint.weights_bytes).c_str(), format_bytes(plan.kv_bytes).c_str(),
               format_bytes(footprint.scratch_bytes).c_str(),
               format_bytes(footprint.process_bytes).c_str(), draft.c_str());
  if (footprint.bookkeeping_bytes > 0)
    std::fprintf(stderr, "Bookkeeping: up to %s more, as requests come\n",
                 format_bytes(footprint.bookkeeping_bytes).c_str());
  // As vLLM says it.
  std::fprintf(stderr,
               "KV cache size: %lld tokens, Maximum concurrency for %d tokens per request: %.2fx\n",
               static_cast<long long>(plan.kv_capacity_tokens), plan.max_model_len,
               plan.max_concurrency);
  std::fprintf(stderr, "KV blocks: %d of %d tokens, %lld bytes/token, %s\n", plan.num_blocks,
               kBlockSize, static_cast<long long>(plan.kv_bytes_per_token),
               format_kv_types(runtime.layout().types()).c_str());
}

std::string read_text_file(const std::string& path) {
  try {
    if (std::ifstream file(path, std::ios::binary); file)
      return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {
    // It can be opened and not be read: a folder.
  }
  throw Error(ErrorKind::kNotFound, fmt::format("{}: cannot be read", path));
}

std::string read_input(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  return read_text_file(path);
}

}  // namespace larder
