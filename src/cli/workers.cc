#include "cli/workers.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "base/error.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/runtime.h"
#include "model/files/content_hash.h"
#include "model/forward/key_calibration.h"
#include "plan/machines.h"

namespace larder {
namespace {

std::vector<std::uint32_t> parse_shares(const std::string& text) {
  std::vector<std::uint32_t> shares;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::uint32_t share = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, share);
    if (error != std::errc() || stop != text.data() + end || share == 0 || share > OutputSplit::kMaxShare)
      throw_invalid("--worker-shares {}: must be whole numbers with commas between, such as 1,1", printable(text));
    shares.push_back(share);
    begin = end + 1;
  }
  return shares;
}

}  // namespace

void add_worker_options(CLI::App& command, WorkerOptions& options) {
  CLI::Option* const workers =
      command.add_option("--workers", options.addresses,
                         "Other machines that compute a part of the model, HOST:PORT where `larder worker` listens, with "
                         "commas between (default: none; in a private network: the link is not encrypted)");
  workers->delimiter(',')->allow_extra_args(false)->check(not_empty());
  command
      .add_option("--worker-shares", options.shares,
                  "Parts of the model, of this machine and then of each worker, such as 2,1 (default: by how fast they "
                  "read their memory)")
      ->check(not_empty())
      ->needs(workers);
  command
      .add_option("--worker-key-file", options.key_file, "A file with the key that the workers were given")
      ->check(not_empty())
      ->needs(workers);
  command
      .add_option("--worker-patience", options.patience_seconds,
                  "Seconds that a step waits for a worker that has gone or does not answer, before requests fail "
                  "(default 60)")
      ->check(finite_range(1, 3600))
      ->needs(workers);
}

void check_worker_options(const WorkerOptions& options) {
  if (options.addresses.size() >= OutputSplit::kMaxMachines)
    throw_invalid("--workers: {} are given, {} are possible", options.addresses.size(), OutputSplit::kMaxMachines - 1);
  for (const std::string& address : options.addresses) {
    try {
      (void)parse_worker_address(address);
    } catch (const Error& error) {
      throw_invalid("--workers: {}", error.what());
    }
  }
  if (options.shares.empty()) return;
  const std::size_t num_shares = parse_shares(options.shares).size();
  if (num_shares != options.addresses.size() + 1)
    throw_invalid("--worker-shares {}: {} parts for {} machines; give one for this machine and one for each worker",
                  options.shares, num_shares, options.addresses.size() + 1);
}

std::string read_worker_key(const std::string& path) {
  if (path.empty()) return "";
  std::string key = read_text_file(path);
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (key.empty() || key.find('\n') != std::string::npos)
    throw_invalid("{}: must have one line, the key", path);
  return key;
}

StageLimits stage_limits(const TransformerLimits& limits) {
  // Keys as codes are measured in batches of their own.
  return {std::max(limits.max_batch_tokens, kCalibrationBatchTokens), limits.max_logit_rows};
}

static void connect_workers(PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool, const Device* device) {
  const WorkerOptions& workers = options.workers;
  if (device != nullptr)
    throw_invalid("--workers: products are shared out on CPUs alone; leave it out, or take --device cpu");
  WorkerLinksConfig config;
  for (const std::string& address : workers.addresses) config.workers.push_back(parse_worker_address(address));
  config.key = read_worker_key(workers.key_file);
  config.hello = {.kernels = select_kernels().name,
                  .activations = options.activations,
                  .model = content_hash(*planned.file.files),
                  .proof = ""};
  config.patience_ns = static_cast<std::int64_t>(workers.patience_seconds * 1e9);
  if (!workers.shares.empty()) config.shares = parse_shares(workers.shares);
  if (workers.shares.empty()) config.own_bytes_per_second = measure_read_rate(pool);
  planned.workers = std::make_unique<WorkerLinks>(config);
}

void share_with_workers(PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool, const Device* device) {
  if (options.workers.addresses.empty()) return;
  try {
    connect_workers(planned, options, pool, device);
  } catch (const Error& error) {
    throw Error(error.kind(), error.message(), kWorkers);
  }
  planned.limits.split = planned.workers->split();
  planned.file.weights_bytes = static_cast<std::int64_t>(
      weights_size_bytes(planned.file.config, planned.file.files->gguf(), {planned.limits.split, 0}));
}

std::string describe_shares(const WorkerLinks& workers) {
  std::string shares;
  for (const std::uint32_t share : workers.split().shares())
    shares += fmt::format("{}{}", shares.empty() ? "" : " : ", share);
  return fmt::format("{}, which with this machine have {} of the products", workers.addresses().size(), shares);
}

}  // namespace larder
