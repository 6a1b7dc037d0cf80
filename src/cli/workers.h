// --workers: other machines that compute a part of the model's products (docs/tensor-parallel.md).
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cluster/worker_links.h"
#include "kernels/kernels.h"
#include "model/forward/transformer.h"

namespace larder {

class Device;
struct PlannedModel;
struct RuntimeOptions;

inline constexpr const char* kWorkers = "workers";

struct WorkerOptions {
  std::vector<std::string> addresses;  // HOST:PORT; empty = none
  std::string shares;                  // "2,1,1"; "" = by speed
  std::string key_file;                // "" = no key
  double patience_seconds = 60;
};

void add_worker_options(CLI::App& command, WorkerOptions& options);
// Throws Error{kInvalidArgument} for what is wrong with them in any case.
void check_worker_options(const WorkerOptions& options);

// Connects to them, if there are any, and shares the planned file's products out: its weights are the server's share then.
// Throws Error{kUnavailable} naming the worker, Error{kInvalidArgument} where there is a device; kWorkers is its param.
void share_with_workers(PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool, const Device* device);
// How many, and the parts of all machines.
std::string describe_shares(const WorkerLinks& workers);
// What workers are asked to hold room for.
StageLimits stage_limits(const TransformerLimits& limits);

// The one key of a file, "" for none. Throws Error.
std::string read_worker_key(const std::string& path);

}  // namespace larder
