// Memory, planned before any of it is taken (promise 4).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kv/cache/kv_cache.h"
#include "kv/kv_layout.h"

namespace larder {

// What is fixed once a file and the engine's limits are chosen. Bytes.
struct Footprint {
  std::int64_t weights_bytes = 0;  // repacked
  std::int64_t scratch_bytes = 0;  // activations and logits of the largest step, attention partials, kernels' stacks
  // Code, vocabulary, templates, threads, connections, what the cache keeps of each block.
  std::int64_t process_bytes = 0;
  std::int64_t disk_index_bytes = 0;  // of process_bytes: grows with --kv-disk-size
  // What grows to this as requests come, and starts at nothing: recent prompts, answers' tokens, the
  // cache's tree.
  std::int64_t bookkeeping_bytes = 0;
  // What measuring keys takes at a first start beside the weights, before there are scratch and blocks; then it is gone.
  std::int64_t measuring_bytes = 0;
  std::int64_t draft_bytes = 0;    // weights and scratch of a model that guesses
  int context_length = 0;          // what the model was trained for
  int max_batch_tokens = 0;        // the longest chunk of a prompt in one step
  // What the cache keeps beside so many blocks; empty = nothing. A plan has it in its own process_bytes
  // and bookkeeping_bytes.
  std::function<KvBookkeeping(int num_blocks)> beside_blocks{};
  // KV of the model that guesses, beside so many blocks; empty = none. A plan has it in draft_kv_bytes.
  std::function<std::int64_t(int num_blocks)> draft_kv_bytes{};
};

// What the user fixes; 0 = Larder chooses.
struct PlanOptions {
  std::int64_t memory_bytes = 0;  // for the whole process
  std::int64_t kv_bytes = 0;      // for KV blocks, instead of memory_bytes
  int max_model_len = 0;          // tokens of prompt and output
  std::string memory_bound = {};  // the limit that leaves no more than is available, "" = none (memory_bound())
};

struct Plan {
  Footprint footprint;
  int num_blocks = 0;
  std::int64_t block_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;  // without a window passed
  std::int64_t draft_kv_bytes = 0;
  int max_model_len = 0;
  double max_concurrency = 0;           // requests of max_model_len tokens at once
  std::int64_t kv_capacity_tokens = 0;  // max_concurrency * max_model_len

  // What the process takes when it begins to serve.
  std::int64_t total_bytes() const {
    return footprint.weights_bytes + footprint.scratch_bytes + footprint.process_bytes + kv_bytes + draft_bytes();
  }
  // Of that, what the model that guesses takes.
  std::int64_t draft_bytes() const { return footprint.draft_bytes + draft_kv_bytes; }
  // While keys are measured.
  std::int64_t measuring_bytes() const {
    const std::int64_t beside = footprint.weights_bytes + footprint.process_bytes + draft_bytes();
    return footprint.measuring_bytes > 0 ? beside + footprint.measuring_bytes : 0;
  }
  // With all of its bookkeeping.
  std::int64_t grown_bytes() const { return total_bytes() + footprint.bookkeeping_bytes; }
  // At any time.
  std::int64_t most_bytes() const { return std::max(grown_bytes(), measuring_bytes()); }
};

// available_bytes: what the machine has free before anything of the footprint is taken.
// Throws Error{kUnavailable} that says how much is missing and which option helps.
Plan make_plan(const KvLayout& layout, const Footprint& footprint, const PlanOptions& options,
               std::int64_t available_bytes);

// Where the system tells about memory.
struct MemoryFolders {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};
// MemAvailable of this machine (or what is free, where that is not told), less what the limits of this process's control group, of those
// above it and of its address space forbid.
std::int64_t available_memory_bytes(const MemoryFolders& folders = {});
// What keeps it below the machine's own: "`ulimit -v`" or "the control group's limit"; "" where nothing does.
std::string memory_bound(const MemoryFolders& folders = {});
// Of control groups' limits the one that leaves least; 0 = none.
std::int64_t memory_limit_bytes(const MemoryFolders& folders = {});
// Resident set of this process: what a plan is held against.
std::int64_t resident_memory_bytes();

// "512 MiB", "1.50 GiB".
std::string format_bytes(std::int64_t bytes);
// As an option takes them: no fewer, and without a blank, "161MiB".
std::string option_bytes(std::int64_t bytes);
// Bytes of "2GiB", "512M", "1.5g", "4096". Throws Error{kInvalidArgument}.
std::int64_t parse_bytes(const char* option, const std::string& text);

}  // namespace larder
