// The other machines that compute outputs of a model's products, as the forward pass sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace larder {

// Products of one input, which go to other machines in one exchange.
enum class Stage : std::uint8_t {
  kHeads,   // queries, keys and values
  kOutput,  // of attention
  kGate,    // gate and up, and their activation
  kDown,
  kLogits,
};
inline constexpr int kNumStages = 5;

struct StageId {
  Stage stage = Stage::kHeads;
  bool has_queries = true;  // of kHeads: not behind the last layer's keys and values
  int layer = 0;            // 0 for kLogits

  bool operator==(const StageId&) const = default;
};

// One of them does not answer any more. What the pass has computed so far is lost with it, and nothing else.
class PartnerLost : public Error {
 public:
  explicit PartnerLost(std::string message) : Error(ErrorKind::kUnavailable, std::move(message)) {}
};

// Two implementations: WorkerLinks, over the network, and the tests' within one process. Thread: the forward pass's.
class ProductPartners {
 public:
  virtual ~ProductPartners() = default;

  // Hands every machine a stage's input, as write_stage_input() makes it. It stays as it is until all have been
  // received from. Never throws: what fails here is tried again in receive().
  virtual void send(StageId stage, int num_rows, std::span<const std::byte> input) = 0;
  // Waits for a machine's outputs of that stage, in order of machines from 1 on, as StageComputer gives them: reply is
  // of their size. Throws PartnerLost.
  virtual void receive(int machine, std::span<std::byte> reply) = 0;
};

}  // namespace larder
