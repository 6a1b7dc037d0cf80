#include "plan/levers.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/cache/kv_cache.h"

namespace larder {
namespace {

constexpr double kReusedShare = 0.9;
constexpr int kMaxWindow = 1024;
constexpr int kMinWindow = 256;
constexpr int kNumSinks = 16;

class LeverList {
 public:
  LeverList(const Deployment& deployment, const StepSpeed& speed, const Workload& workload,
            double kv_budget_bytes)
      : deployment_(deployment),
        speed_(speed),
        workload_(workload),
        kv_budget_bytes_(kv_budget_bytes),
        now_(plan_capacity(deployment, speed, workload, kv_budget_bytes)) {}

  std::vector<Lever> run() {
    add_kv_types();
    add_weights();
    add_devices();
    add_reuse();
    add_window();
    std::stable_sort(levers_.begin(), levers_.end(), [](const Lever& a, const Lever& b) {
      if (a.after.max_rate != b.after.max_rate) return a.after.max_rate > b.after.max_rate;
      return a.after.ttft_seconds < b.after.ttft_seconds;
    });
    return std::move(levers_);
  }

 private:
  void add(std::string name, std::string option, const Deployment& changed,
           const Workload& workload) {
    const Capacity after = plan_capacity(changed, scaled_speed(speed_, deployment_, changed),
                                         workload, kv_budget_bytes_);
    // What does not help enough, slows the machine down or changes little is no lever.
    if (!after.fits()) return;
    if (after.max_rate < now_.max_rate * 1.01 && after.ttft_seconds > now_.ttft_seconds * 0.99)
      return;
    levers_.push_back({std::move(name), std::move(option), after});
  }

  void add_kv_types() {
    if (deployment_.shape.kv_layers.front().is_latent) return;
    const KvLayout layout = deployment_.device_layout();
    for (const auto& [type, name] : {std::pair{KvType::kInt8, "int8"}, {KvType::kInt4, "int4"}}) {
      Deployment changed = deployment_;
      changed.kv_types = {type, type};
      if (changed.device_layout().bytes_per_token() >= layout.bytes_per_token()) continue;
      add(fmt::format("keys and values as {}", name), fmt::format("--kv-type {}", name), changed,
          workload_);
    }
  }

  void add_weights() {
    const double bytes = weights_bytes(deployment_.shape, deployment_.weights);
    for (const WeightFormat& format : weight_formats()) {
      Deployment changed = deployment_;
      changed.weights = format;
      if (format.name == "mxfp4" || format.name == "fp8") continue;  // where published so
      if (weights_bytes(changed.shape, format) > 0.9 * bytes) continue;
      const bool is_file = deployment_.weights.name == "file";
      add(fmt::format("weights as {}", format.name),
          is_file ? "" : fmt::format("--weights {}", format.name), changed, workload_);
    }
  }

  void add_devices() {
    if (deployment_.machine.is_measured || 2 * deployment_.num_devices > kMaxDevices) return;
    Deployment changed = deployment_;
    changed.num_devices *= 2;
    add(fmt::format("{} devices", changed.num_devices),
        fmt::format("--tp {}", changed.num_devices), changed, workload_);
  }

  void add_reuse() {
    Workload reused = workload_;
    reused.cached_share = kReusedShare;
    if (workload_.cached_share < kReusedShare)
      add("90 % of each prompt begins as an earlier one did", "", deployment_, reused);
  }

  void add_window() {
    if (deployment_.attention.window > 0 || deployment_.shape.kv_layers.front().is_latent) return;
    Deployment bounded = deployment_;
    AttentionSpan& span = bounded.attention;
    span = {.window = kMaxWindow, .num_sinks = kNumSinks};
    // What a server would refuse is no advice.
    while (KvCache::num_endless_tokens(span, bounded.max_batch_tokens) > bounded.shape.context_len)
      if ((span.window /= 2) < kMinWindow) return;
    if (workload_.request_len() <= span.window) return;
    add(fmt::format("a window of {} tokens", span.window),
        fmt::format("--attention-window {} --attention-sinks {}", span.window, span.num_sinks), bounded,
        workload_);
  }

  const Deployment& deployment_;
  const StepSpeed& speed_;
  const Workload& workload_;
  double kv_budget_bytes_;
  Capacity now_;
  std::vector<Lever> levers_;
};

}  // namespace

std::vector<Lever> list_levers(const Deployment& deployment, const StepSpeed& speed,
                               const Workload& workload, double kv_budget_bytes) {
  return LeverList(deployment, speed, workload, kv_budget_bytes).run();
}

}  // namespace larder
