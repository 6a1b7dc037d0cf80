#include "engine/step_pace.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace larder {
namespace {

constexpr double kDecodeWeight = 0.2;   // of a new step in the averages
constexpr double kPrefillWeight = 0.3;  // depth grows from step to step
constexpr double kMostGrowth = 2;       // one slow step is the machine's, not the model's
// Steps vary by half, and it is the slow ones that are felt.
constexpr double kMargin = 0.6;
// Tokens behind a long context cost little each, once its keys and values are read: where there is no
// room for two, these many take hardly longer than one, and the prompt comes to its end.
constexpr int kLeastTokens = 4;
constexpr int kFewTokens = 2;
constexpr int kPromptTokens = 64;  // a step without decodes that says what a prompt's token costs

void average(double& value, double observed, double weight) {
  if (value == 0) {
    value = observed;
  } else {
    value += weight * (std::min(observed, kMostGrowth * value) - value);
  }
}

}  // namespace

std::size_t StepPace::size_of(int num_decodes) {
  const int width = std::bit_width(static_cast<unsigned>(num_decodes));
  return static_cast<std::size_t>(std::min(width, kSizes) - 1);
}

int StepPace::num_prefill_tokens(int num_decodes, int num_prompts, int most) const {
  if (most_slowdown_ <= 0) return most;
  const double decode_ns = decode_ns_[size_of(num_decodes)];
  if (decode_ns == 0 || num_mixed_ >= kStaleAfter) return 0;
  if (prefill_ns_ == 0) return std::min(most, kFewTokens);
  const double share = std::max(1.0, static_cast<double>(num_prompts) / num_decodes);
  const double room_ns = std::max(0.0, (most_slowdown_ - 1) * share * kMargin * decode_ns);
  const auto num_tokens = static_cast<int>(std::min(room_ns / prefill_ns_, static_cast<double>(most)));
  return std::min(most, num_tokens < kFewTokens ? kLeastTokens : num_tokens);
}

void StepPace::observe(int num_decodes, int num_prefill, std::int64_t duration_ns) {
  CHECK(num_prefill >= 0, num_prefill);
  const double step_ns = std::max(1.0, static_cast<double>(duration_ns));
  if (num_decodes == 0) {
    if (num_prefill >= kPromptTokens && prefill_ns_ == 0) prefill_ns_ = step_ns / num_prefill;
    return;
  }
  double& decode_ns = decode_ns_[size_of(num_decodes)];
  if (num_prefill == 0) {
    average(decode_ns, step_ns, kDecodeWeight);
    num_mixed_ = 0;
    return;
  }
  ++num_mixed_;
  if (decode_ns == 0) return;
  // A step that beat the average still had to compute the tokens.
  const double added_ns = std::max(step_ns - decode_ns, 0.05 * step_ns);
  average(prefill_ns_, added_ns / num_prefill, kPrefillWeight);
}

}  // namespace larder
