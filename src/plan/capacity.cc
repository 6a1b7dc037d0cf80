#include "plan/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/largest.h"
#include "plan/plan.h"

namespace larder {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double prompt_seconds(const StepSpeed& speed, const Deployment& deployment,
                      const Workload& workload) {
  return prefill_seconds(speed, deployment, workload.prompt_len,
                         deployment.num_cached(workload.prompt_len, workload.cached_share));
}

// A request in the middle of its output stands for all.
double step_seconds(const StepSpeed& speed, const Deployment& deployment, const Workload& workload,
                    double num_sequences) {
  return decode_step_seconds(speed, deployment, num_sequences,
                             workload.prompt_len + workload.output_len / 2.0);
}

// Of one request at its end, on one device.
double request_bytes(const Deployment& deployment, const Workload& workload) {
  return deployment.request_bytes(workload.request_len());
}

// What the weights leave of a device's memory.
double left_bytes(const Deployment& deployment) {
  return static_cast<double>(deployment.machine.memory_bytes) - deployment.device_weights_bytes();
}

// Of one device, that its requests may take: none where a budget is more than there is.
double usable_bytes(const Deployment& deployment, double kv_budget_bytes) {
  const double left = std::max(0.0, left_bytes(deployment));
  if (kv_budget_bytes > left) return 0;
  return kv_budget_bytes > 0 ? kv_budget_bytes : left;
}

// Options that would make it fit, at most two.
std::string ways_to_fit(const Deployment& deployment, const Workload& workload,
                        double kv_budget_bytes) {
  const double one_request = request_bytes(deployment, workload);
  const auto fits = [&](const Deployment& changed) {
    return usable_bytes(changed, kv_budget_bytes) >= request_bytes(changed, workload);
  };
  std::vector<std::string> ways;
  if (kv_budget_bytes > 0 && left_bytes(deployment) >= one_request)
    ways.push_back("--kv-size " + option_bytes(static_cast<std::int64_t>(one_request)));
  Deployment changed = deployment;
  for (const WeightFormat& format : weight_formats()) {
    if (format.name == "mxfp4" && deployment.shape.num_experts == 0) continue;
    changed.weights = format;
    if (changed.device_weights_bytes() >= deployment.device_weights_bytes() || !fits(changed))
      continue;
    ways.push_back("--weights " + format.name);
    break;
  }
  changed = deployment;
  while (!deployment.machine.is_measured && changed.num_devices < 64) {
    changed.num_devices *= 2;
    if (!fits(changed)) continue;
    ways.push_back(fmt::format("--tp {}", changed.num_devices));
    break;
  }
  if (ways.empty()) ways.push_back("a smaller model");
  return ways[0] + (ways.size() > 1 ? " or " + ways[1] : "");
}

}  // namespace

std::int64_t max_context_for_budget(double memory_bytes, double model_weights_bytes,
                                    double kv_bytes_per_token, double num_sequences) {
  const double left = std::max(0.0, memory_bytes - model_weights_bytes);
  return static_cast<std::int64_t>(left / num_sequences / kv_bytes_per_token);
}

std::int64_t max_context_for_budget(const Deployment& deployment, double kv_budget_bytes,
                                    double num_sequences) {
  return largest(deployment.max_request_len(), [&](std::int64_t num_tokens) {
    return deployment.request_bytes(num_tokens) * num_sequences <= kv_budget_bytes;
  });
}

double requests_present(const StepSpeed& speed, const Deployment& deployment,
                        const Workload& workload) {
  // Prompts take their share of the time; the others' tokens come in what is left.
  const double prompt = prompt_seconds(speed, deployment, workload);
  const double left = 1 - workload.rate * prompt;
  if (left <= 0) return kInfinite;
  constexpr double kTooMany = 1e5;
  double present = 0;
  for (int i = 0; i < 1000; ++i) {
    const double step = step_seconds(speed, deployment, workload, std::max(present, 1.0));
    const double next = workload.rate * (prompt + workload.output_len * step / left);
    if (next > kTooMany) return kInfinite;
    if (std::abs(next - present) <= 1e-6 * next) return next;
    present = next;
  }
  return present;
}

Capacity plan_capacity(const Deployment& deployment, const StepSpeed& speed,
                       const Workload& workload, double kv_budget_bytes) {
  Capacity capacity;
  const double usable = usable_bytes(deployment, kv_budget_bytes);
  capacity.request_kv_bytes = request_bytes(deployment, workload);
  capacity.memory_requests = usable / capacity.request_kv_bytes;
  capacity.longest_request = max_context_for_budget(deployment, usable, 1);
  capacity.ttft_seconds = prompt_seconds(speed, deployment, workload);
  capacity.decode_rate_alone = 1 / step_seconds(speed, deployment, workload, 1);
  if (workload.rate > 0) capacity.requests_present = kInfinite;
  if (!capacity.fits()) return capacity;
  const double at_once =
      std::min(std::floor(capacity.memory_requests), static_cast<double>(workload.max_sequences));
  const double step = step_seconds(speed, deployment, workload, at_once);
  capacity.decode_rate_full = at_once / step;
  capacity.max_rate = 1 / (capacity.ttft_seconds + workload.output_len * step / at_once);
  // Little's law knows of no limit to those present.
  if (workload.rate > 0 && workload.rate <= capacity.max_rate)
    capacity.requests_present = requests_present(speed, deployment, workload);
  return capacity;
}

int longest_prompt_within(const StepSpeed& speed, const Deployment& deployment, double seconds,
                          double cached_share) {
  const auto is_in_time = [&](std::int64_t length) {
    const int prompt = static_cast<int>(length);
    return prefill_seconds(speed, deployment, prompt,
                           deployment.num_cached(prompt, cached_share)) <= seconds;
  };
  // Not from the middle of all that there may be: a window's requests have millions of tokens, and
  // their chunks are added up.
  const std::int64_t most = deployment.max_request_len();
  std::int64_t limit = std::min<std::int64_t>(most, deployment.shape.context_len);
  while (limit < most && is_in_time(limit)) limit = std::min(2 * limit, most);
  return static_cast<int>(largest(limit, is_in_time));
}

std::string shortage(const Deployment& deployment, const Workload& workload,
                     double kv_budget_bytes) {
  const double one_request = request_bytes(deployment, workload);
  if (usable_bytes(deployment, kv_budget_bytes) >= one_request) return "";
  const bool is_budget_short = kv_budget_bytes > 0 && kv_budget_bytes < one_request;
  const double weights = deployment.device_weights_bytes();
  const double kv = std::max(one_request, kv_budget_bytes);
  const double memory = static_cast<double>(deployment.machine.memory_bytes);
  return fmt::format(
      "does not fit: needs {} ({} of weights and {} of KV {}){}, has {}; use {}",
      format_bytes(static_cast<std::int64_t>(weights + kv)),
      format_bytes(static_cast<std::int64_t>(weights)), format_bytes(static_cast<std::int64_t>(kv)),
      kv > one_request ? "by --kv-size"
                       : fmt::format("for one request of {} tokens", workload.request_len()),
      deployment.num_devices > 1 ? " on each device" : "",
      format_bytes(static_cast<std::int64_t>(
          is_budget_short ? std::min(memory, weights + kv_budget_bytes) : memory)),
      ways_to_fit(deployment, workload, kv_budget_bytes));
}

}  // namespace larder
