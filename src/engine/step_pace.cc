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
constexpr double kChunkMargin = 0.9;  // a chunk's layers stop by the clock
constexpr double kLayerWeight = 0.1;  // there are many
constexpr int kPromptTokens = 64;  // a step without decodes that says what a prompt's token costs
// So many tokens at once make good use of the weights and of the context that are read for them.
constexpr int kEnoughTokens = 32;
constexpr int kLeastChunk = 8;
constexpr double kMostAloneNs = 1e9;
constexpr double kAloneLayersNs = 0.2e9;  // of a chunk, before somebody else may come
constexpr int kLeastAlone = 128;  // fewer take nearly as long
constexpr int kLeastBrief = 16;   // fewer take the same time, which the weights' reading does
constexpr double kBriefSteps = 3;  // of a prompt that may make steps last as long as patience allows
constexpr int kFirstTokens = 8;  // of a prompt beside others, while nobody knows what they cost

// How many things of this size fit; unknown sizes do not.
int num_that_fit(double room, double size, int most) {
  return size > 0 ? static_cast<int>(std::min(room / size, static_cast<double>(most))) : 0;
}

}  // namespace

void move_average(double& value, double observed, double weight) {
  if (value == 0) {
    value = observed;
  } else {
    value += weight * (std::min(observed, kMostGrowth * value) - value);
  }
}

std::size_t StepPace::size_of(int num_decodes) {
  const int width = std::bit_width(static_cast<unsigned>(num_decodes));
  return static_cast<std::size_t>(std::min(width, kSizes) - 1);
}

// A long prompt alone would make all of a stream's tokens late that come beside it.
bool StepPace::has_patience_for(const PromptsAhead& prompts) const {
  if (prompts.num > 1) return true;
  const double prompt_ns = prefill_ns_ * static_cast<double>(prompts.num_tokens);
  return prompt_ns > 0 && prompt_ns <= kBriefSteps * patience_ns_;
}

PromptRoom StepPace::room(int num_decodes, const PromptsAhead& prompts, int most,
                          int most_chunk) const {
  if (most_slowdown_ <= 0) return {.num_tokens = most, .num_brief = most};
  const double decode_ns = decode_ns_[size_of(num_decodes)];
  if (decode_ns == 0 || num_mixed_ >= kStaleAfter) return {};
  const double share = std::max(1.0, static_cast<double>(prompts.num) / num_decodes);
  double room_ns = std::max(0.0, (most_slowdown_ - 1) * share * decode_ns);
  if (has_patience_for(prompts)) room_ns = std::max(room_ns, patience_ns_ - decode_ns);
  const double chunk_ns = kChunkMargin * room_ns;
  PromptRoom room{.num_tokens = prefill_ns_ > 0
                                    ? num_that_fit(kMargin * room_ns, prefill_ns_, most)
                                    : std::min(most, kFirstTokens),
                  .chunk_ns = static_cast<std::int64_t>(chunk_ns)};
  const double longest = *std::ranges::max_element(layer_ns_);
  if (room.num_tokens < std::min(most, kEnoughTokens))
    room.num_chunk_tokens =
        std::min(most_chunk, std::max(kLeastChunk, num_that_fit(chunk_ns, longest, most_chunk)));
  room.num_brief = std::max(room.num_tokens, room.num_chunk_tokens);
  return room;
}

PromptRoom StepPace::room_alone(const PromptsAhead& prompts, int most, int most_chunk) const {
  PromptRoom room{.num_tokens = most,
                  .chunk_ns = static_cast<std::int64_t>(kAloneLayersNs),
                  .num_brief = most};
  if (most_slowdown_ <= 0 || alone_ns_ == 0) return room;
  room.num_tokens = std::min(most, std::max(kLeastAlone, num_that_fit(kMostAloneNs, alone_ns_, most)));
  room.num_brief = std::min(room.num_tokens,
                            std::max(kLeastBrief, num_that_fit(kAloneLayersNs, alone_ns_, most)));
  if (room.num_brief == room.num_tokens) return room;
  room.num_chunk_tokens = std::min(room.num_tokens, most_chunk);
  // Several are computed together while they are short, which takes less time than one after the other.
  if (prompts.num == 1) room.num_tokens = room.num_brief;
  return room;
}

void StepPace::observe(int num_decodes, int num_prefill, std::int64_t duration_ns) {
  CHECK(num_prefill >= 0, num_prefill);
  const double step_ns = std::max(1.0, static_cast<double>(duration_ns));
  if (num_decodes == 0) {
    if (num_prefill < kPromptTokens) return;
    move_average(alone_ns_, step_ns / num_prefill, kPrefillWeight);
    if (prefill_ns_ == 0) prefill_ns_ = alone_ns_;
    return;
  }
  double& decode_ns = decode_ns_[size_of(num_decodes)];
  if (num_prefill == 0) {
    move_average(decode_ns, step_ns, kDecodeWeight);
    num_mixed_ = 0;
    return;
  }
  ++num_mixed_;
  if (decode_ns == 0) return;
  // A step that beat the average still had to compute the tokens.
  const double added_ns = std::max(step_ns - decode_ns, 0.05 * step_ns);
  move_average(prefill_ns_, added_ns / num_prefill, kPrefillWeight);
}

void StepPace::observe_layer(int kind, int num_tokens, std::int64_t duration_ns) {
  if (num_tokens < kLeastChunk) return;  // the weights were read for few
  move_average(layer_ns_.at(static_cast<std::size_t>(kind)),
          std::max(1.0, static_cast<double>(duration_ns)) / num_tokens, kLayerWeight);
}

void StepPace::observe_chunk(int num_tokens, std::int64_t duration_ns) {
  if (num_tokens < kLeastChunk) return;
  const double token_ns = std::max(1.0, static_cast<double>(duration_ns)) / num_tokens;
  move_average(prefill_ns_, token_ns, kPrefillWeight);
  if (num_tokens >= kPromptTokens) move_average(alone_ns_, token_ns, kPrefillWeight);
}

double StepPace::layer_ns(int kind, int num_tokens) const {
  return layer_ns_.at(static_cast<std::size_t>(kind)) * num_tokens;
}

}  // namespace larder
