// How long steps take: by the roofline (Williams et al. 2009) of a machine, or measured.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/kv_type.h"
#include "kv/cache/block_table.h"
#include "model/forward/most_running.h"
#include "plan/machines.h"
#include "plan/model_shape.h"

namespace larder {

// Seconds of a step without attention over what lies before it, by its rows: linear between the
// samples, in proportion beyond the last.
struct StepCurve {
  struct Sample {
    double num_rows = 0;
    double seconds = 0;
  };
  std::vector<Sample> samples;  // ascending, at least one

  double seconds(double num_rows) const;
};

struct StepSpeed {
  StepCurve decode;   // one row for each of so many sequences, all with logits
  StepCurve prefill;  // so many tokens of one prompt, logits of the last
  // Attention, of one layer: reading a token's keys and values for one query row; a query and a key
  // of a prompt's chunk.
  double decode_key_seconds = 0;
  double prefill_pair_seconds = 0;
};

// Keys that a query behind num_tokens sees, summed over the layers.
double seen_by_decodes(std::span<const KvLayerShape> layers, double num_tokens);
// But a prompt's: in the last layer it computes no attention but of its last token. layers: one at least.
double seen_by_prompts(std::span<const KvLayerShape> layers, double num_tokens);

inline constexpr int kMaxDevices = 1024;
// Rows of logits that a server computes at once: one for each sequence that decodes in a step, and
// chunks of a prompt whose log-probabilities are asked for.
inline constexpr int kMaxLogitRows = 64;

// What is planned: a model in a format on so many devices of a machine, and how it is served.
struct Deployment {
  ModelShape shape;
  WeightFormat weights;
  KvTypes kv_types = {};
  Machine machine;
  int num_devices = 1;         // weights and KV heads are shared out over them
  int max_batch_tokens = 512;  // of a step
  AttentionSpan attention{};   // of each request: endless context; window 0 = all is seen
  // Tokens that are served of a request with a window, which the model's context does not end.
  int max_endless_tokens = std::numeric_limits<int>::max();

  double device_weights_bytes() const { return weights_bytes(shape, weights) / num_devices; }
  // Of one device. Heads are not cut in pieces: where there are more devices than KV heads, several
  // keep the same (and all of them MLA's latent).
  KvLayout device_layout() const;
  // Sequences that run at once, at most.
  int max_running() const { return most_running(max_batch_tokens, std::min(kMaxLogitRows, max_batch_tokens)); }
  // Of those, that decode in one step: more take turns.
  int max_decodes() const { return std::min(kMaxLogitRows, max_running()); }
  // Tokens that a request may have, prompt and output together.
  int max_request_len() const {
    return attention.window > 0 ? max_endless_tokens : shape.context_len;
  }
  // Of num_tokens before it, those that a token sees in a layer without a window of its own.
  double num_seen(double num_tokens) const;
  // Of its num_tokens, those that a request holds at once, at most.
  std::int64_t num_held(std::int64_t num_tokens) const;
  // Bytes of those, on one device.
  double request_bytes(std::int64_t num_tokens) const;
  // Of a prompt of which the cache has such a share, the tokens that are not computed.
  int num_cached(int prompt_len, double share) const;
};

// Nothing is faster: bytes at the machine's bandwidth or operations at its peak, whichever takes
// longer; the links between devices are not counted.
StepSpeed roofline(const Deployment& deployment);

// What a token of each of num_sequences takes, with num_tokens before it: one decode step, or the
// turns of more than decode in one.
double decode_step_seconds(const StepSpeed& speed, const Deployment& deployment,
                           double num_sequences, double num_tokens);
// What computing a prompt of num_tokens takes, the first num_cached of which are there.
double prefill_seconds(const StepSpeed& speed, const Deployment& deployment, int num_tokens,
                       int num_cached);

// A measured speed changed as much as the roofline changes from one deployment to another.
StepSpeed scaled_speed(const StepSpeed& measured, const Deployment& from, const Deployment& to);

}  // namespace larder
