// The engine: one thread that owns the scheduler, the cache and the model, and steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "engine/request.h"
#include "kv/kv_cache.h"
#include "model/transformer.h"

namespace larder {

struct EngineConfig {
  int num_blocks = 0;            // KV blocks in all
  int max_model_len = 0;         // tokens of prompt and output, at most the pool's capacity
  int max_batch_tokens = 512;    // tokens computed in a step
  int max_sequences = 256;       // running at once; more wait in line
  int max_prefill_tokens = 128;  // of a step, while others decode: bounds their inter-token latency
  int max_waiting = 4096;        // requests in line before submit refuses
};

// Everything that /metrics and the log line show; a copy, consistent as of one step.
struct EngineStats {
  int num_running = 0;
  int num_waiting = 0;
  KvStats kv;
  std::uint64_t num_steps = 0;
  std::uint64_t num_preemptions = 0;
  std::uint64_t num_prompt_tokens = 0;  // of scheduled requests
  std::uint64_t num_prompt_tokens_cached = 0;
  std::uint64_t num_generated_tokens = 0;
  std::uint64_t num_prefix_queries = 0;  // tokens looked up
  std::uint64_t num_prefix_hits = 0;     // tokens found
  std::vector<std::uint64_t>
      step_token_counts;  // histogram of tokens per step, see kStepTokenBounds
};

// Thread: submit, cancel and stats from any; the rest on the engine's own thread.
class Engine {
 public:
  // References must outlive the engine.
  Engine(const EngineConfig& config, Transformer& model, KvStorage& storage, const KvLayout& layout,
         std::span<const TokenId> end_tokens, const Clock& clock);
  ~Engine();  // stop() and join

  void start();
  // Lets running and waiting requests end if drain, else cancels them; then the thread ends.
  void stop(bool drain);

  // Queues a request and returns its id. Throws Error{kInvalidArgument} naming the field when the
  // request cannot ever run (empty prompt, prompt + 1 > max_model_len, token out of range),
  // Error{kUnavailable} when the line is full. max_tokens is cut to what max_model_len leaves.
  std::uint64_t submit(Request request);
  // The request's blocks are free within one step; a last update with kCancelled follows per open
  // choice.
  void cancel(std::uint64_t request_id);
  void reset_prefix_cache();

  bool alive() const;  // false once the engine thread has ended
  EngineStats stats() const;
  const EngineConfig& config() const;
};

}  // namespace larder
