// Whose turn it is among prompts that share steps: one of many steps lets shorter ones pass every second time.
#pragma once

#include <cstdint>
#include <optional>

namespace larder {

// What a prompt takes of a step.
struct TakenTurn {
  bool is_long = false;         // it needs more turns than this one, or goes as a chunk
  bool passes_a_longer = false;  // one of its priority goes before it, misses more, and is still to be computed
};

// A step has a turn where no chunk is under way; it is had by whoever takes of it first. Shorter prompts may pass in it if
// the one before was had by a long prompt that passed nobody longer: so whoever is passed has its own behind the one that
// passed it, however many come, and however many turns each of them needs. (Who waits is not passed by a second one
// meanwhile, but no third one passes the first, either.) What comes between a chunk's layers is no turn, and changes nobody's.
// Thread: engine only.
class PromptTurns {
 public:
  // num_brief: a prompt that misses more lets others pass.
  void begin(int num_brief);
  // Between the layers of a chunk, whose prompt misses num_missing: others may pass, but nobody begins a chunk.
  void begin_between_layers(int num_brief, int num_missing);
  // What is left is for whoever comes first.
  void end_passing() { lets_pass_ = false; }

  bool lets_pass() const { return lets_pass_; }
  bool is_taken() const { return is_taken_; }
  bool is_between_layers() const { return is_between_layers_; }
  // Whether one that is to be computed gives way to others. Asked in order of GoesBefore among those who run, then among
  // those who wait: the first decides how long those may be who pass it. Who is less urgent gives way with it; who is more
  // urgent does not.
  bool gives_way(int priority, int num_missing);
  // Whether one that misses at most num_missing passes those who gave way.
  bool may_pass(int priority, int num_missing) const;
  // Its first one is told.
  void take(const TakenTurn& taken);

  // In which some could pass.
  std::uint64_t num() const { return num_; }

 private:
  void start(bool lets_pass, int most_to_pass);

  bool was_long_ = false;  // the last turn, so that shorter ones have the next
  bool lets_pass_ = false;
  bool is_taken_ = false;
  bool is_between_layers_ = false;
  std::optional<int> passed_priority_;  // of the most urgent that gave way
  int most_to_pass_ = 0;                // tokens that those may miss who pass it
  std::uint64_t num_ = 0;
};

}  // namespace larder
