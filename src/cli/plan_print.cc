// The plan as tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/plan_report.h"
#include "kv/kv_type_names.h"

namespace larder {
namespace {

void row(const std::string& name, const std::string& value) {
  std::printf("%-34s %s\n", name.c_str(), value.c_str());
}

void title(const char* text) { std::printf("\n%s\n", text); }

std::string bytes(double value) { return format_bytes(static_cast<std::int64_t>(value)); }

// "1.23 s", "45 ms".
std::string duration(double seconds) {
  if (seconds >= 99.5) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 0.9995) return fmt::format("{:.2f} s", seconds);
  return seconds >= 0.00995 ? fmt::format("{:.0f} ms", seconds * 1e3)
                            : fmt::format("{:.1f} ms", seconds * 1e3);
}

std::string rate(double value) {
  return value >= 100 ? fmt::format("{:.0f}", value)
         : value >= 1 ? fmt::format("{:.1f}", value)
                      : fmt::format("{:.3f}", value);
}

std::string peak(double ops_per_s) {
  return ops_per_s >= 1e13 ? fmt::format("{:.0f} T", ops_per_s / 1e12)
                           : fmt::format("{:.0f} G", ops_per_s / 1e9);
}

void print_subject(const PlanReport& report) {
  const Deployment& d = report.deployment;
  const ModelShape& shape = d.shape;
  const int num_windowed =
      static_cast<int>(std::count_if(shape.kv_layers.begin(), shape.kv_layers.end(),
                                     [](const KvLayerShape& layer) { return layer.window > 0; }));
  row("Model", fmt::format("{}, {} layers{}, context {}", shape.name, shape.num_layers(),
                           num_windowed > 0 ? fmt::format(" ({} with a window)", num_windowed) : "",
                           report.trained_context_len));
  row("Parameters", fmt::format("{:.2f} G, {:.2f} G of them for each token",
                                static_cast<double>(shape.num_parameters()) / 1e9,
                                static_cast<double>(shape.num_active_parameters()) / 1e9));
  if (d.attention.window > 0)
    row("Attention window",
        fmt::format("{} tokens and {} sinks: a token sees {:.0f} at most, a request holds {} at most",
                    d.attention.window, d.attention.num_sinks, d.num_seen(d.max_request_len()),
                    d.num_held(d.max_request_len())));
  const Machine& m = d.machine;
  const std::string count = d.num_devices > 1 ? fmt::format("{} x ", d.num_devices) : "";
  row("Machine", fmt::format("{}{}, {}{}", count, m.name, format_bytes(m.memory_bytes),
                             m.is_measured ? " available" : " (datasheet)"));
  if (m.read_bytes_per_s > 0)
    row("  reads, multiplies at most",
        fmt::format("{:.1f} GB/s; {} f32, {} bf16, {} 8-bit, {} 4-bit operations/s",
                    m.read_bytes_per_s / 1e9, peak(m.peak(OpsKind::kF32)),
                    peak(m.peak(OpsKind::kBF16)), peak(m.peak(OpsKind::kInt8)),
                    peak(m.peak(OpsKind::kInt4))));
}

void print_memory(const PlanReport& report) {
  const Deployment& d = report.deployment;
  title("Memory");
  if (const auto& plan = report.server) {
    row("Weights", format_bytes(plan->footprint.weights_bytes));
    row("Scratch of a step", format_bytes(plan->footprint.scratch_bytes));
    row("Process", format_bytes(plan->footprint.process_bytes));
    row("KV cache", format_bytes(plan->kv_bytes));
    if (plan->draft_bytes() > 0)
      row("Draft model", fmt::format("{}, {} of it KV", format_bytes(plan->draft_bytes()), format_bytes(plan->draft_kv_bytes)));
    row("Total", format_bytes(plan->total_bytes()));
    row("  and, as requests come, at most",
        fmt::format("{} of bookkeeping", format_bytes(plan->footprint.bookkeeping_bytes)));
  } else {
    row("Weights", fmt::format("{} as {}", bytes(weights_bytes(d.shape, d.weights)),
                               d.weights.name));
    if (d.num_devices > 1) row("  on each device", bytes(d.device_weights_bytes()));
  }
  std::string others;
  for (const WeightFormat& format : weight_formats())
    if (format.name != "mxfp4" || d.shape.num_experts > 0)
      others += fmt::format("{}{} {}", others.empty() ? "" : ", ", format.name,
                            bytes(weights_bytes(d.shape, format)));
  row("  by type", others);
  row("KV type", format_kv_types(d.kv_types));
  row("KV bytes per token",
      fmt::format("{}", KvLayout(d.shape.kv_layers, d.kv_types).bytes_per_token()));
  others.clear();
  for (const auto& [name, types] : listed_kv_types(d.shape))
    others += fmt::format("{}{} {}", others.empty() ? "" : ", ", name,
                          KvLayout(d.shape.kv_layers, types).bytes_per_token());
  row("  by type", others);
  if (d.num_devices > 1)
    row("  on each device", fmt::format("{}", d.device_layout().bytes_per_token()));
  if (const auto& plan = report.server) {
    row("KV blocks", fmt::format("{} of {}", plan->num_blocks, format_bytes(plan->block_bytes)));
    row("Longest prompt and output, tokens",
        d.attention.window > 0
            ? fmt::format("{} with the window, {} without", d.max_request_len(), plan->max_model_len)
            : fmt::format("{}", plan->max_model_len));
    row("KV capacity, tokens", fmt::format("{}", plan->kv_capacity_tokens));
  }
}

void print_concurrency(const PlanReport& report) {
  const Deployment& d = report.deployment;
  const double budget = report.kv_budget_bytes;
  title("Requests at once, by memory");
  for (const int tokens : listed_lengths(report))
    row(fmt::format("Requests of {} tokens at once", tokens),
        fmt::format("{:.1f}", budget / d.request_bytes(tokens)));
  for (const int users : {1, 10, 50, 100}) {
    const std::int64_t tokens = max_context_for_budget(d, std::max(0.0, budget), users);
    const bool is_any = d.attention.window > 0 && tokens == d.max_request_len();
    row(fmt::format("Longest context of {} at once", users),
        is_any ? fmt::format("any, up to the {} tokens that a server takes", tokens)
               : fmt::format("{} tokens", tokens));
  }
}

void print_workload(const PlanReport& report) {
  const Deployment& d = report.deployment;
  const Workload& w = report.workload;
  const Capacity& c = report.capacity;
  title("Admission");
  // What is cached behind a full window is no other's.
  const bool is_cut = d.attention.window > 0 && w.cached_share * w.prompt_len > d.attention.window;
  row("A request",
      fmt::format("{} tokens in, {} out{}{}", w.prompt_len, w.output_len,
                  w.cached_share > 0
                      ? fmt::format(", {:.0f} % of the prompt cached", w.cached_share * 100)
                      : "",
                  is_cut ? fmt::format(", of which the window's {} tokens count", d.attention.window)
                         : ""));
  const double at_once = std::min<double>(std::floor(c.memory_requests), w.max_sequences);
  row("At once, at most", fmt::format("{:.0f} (memory holds {:.1f}, --max-sequences {})", at_once,
                                      c.memory_requests, w.max_sequences));
  if (at_once > d.max_decodes())
    row("  decode in one step", fmt::format("{}, in turns", d.max_decodes()));
  row("Requests/s, at most", rate(c.max_rate));
  row("Tokens/s out of all, at most", rate(c.decode_rate_full));
  if (w.rate <= 0) return;
  const std::string name = fmt::format("At {:g} requests/s", w.rate);
  if (std::isinf(c.requests_present))
    row(name, "the line grows for ever: more come in than can be served");
  else
    row(name, fmt::format("{:.1f} at once (Little's law)", c.requests_present));
}

void print_decode(const PlanReport& report) {
  const Deployment& d = report.deployment;
  title(report.is_calibrated ? "Decode, tokens/s (measured here)"
                             : "Decode, tokens/s at most (roofline)");
  std::printf("%-34s %10s %10s %10s\n", "Context", "1 at once", "8 at once", "64 at once");
  std::vector<int> lengths = listed_lengths(report);
  lengths.insert(lengths.begin(), 0);
  for (const int length : lengths) {
    const auto of = [&](int count) {
      return rate(count / decode_step_seconds(*report.speed, d, count, length));
    };
    std::printf("%-34d %10s %10s %10s\n", length, of(1).c_str(), of(8).c_str(), of(64).c_str());
  }
}

void print_first_token(const PlanReport& report) {
  const Deployment& d = report.deployment;
  title(report.is_calibrated ? "Time to first token (measured here)"
                             : "Time to first token, at least (roofline)");
  std::printf("%-34s %10s %10s %10s  %s\n", "Prompt", "computed", "90 % hit", "all hit",
              "computed within");
  for (const int length : listed_lengths(report)) {
    const auto of = [&](double share) {
      return prefill_seconds(*report.speed, d, length, d.num_cached(length, share));
    };
    std::string met;
    for (const LatencyTarget& target : kLatencyTargets)
      if (of(0) <= target.seconds) met += fmt::format("{}{}", met.empty() ? "" : " ", target.name);
    std::printf("%-34d %10s %10s %10s  %s\n", length, duration(of(0)).c_str(),
                duration(of(0.9)).c_str(), duration(of(1)).c_str(),
                met.empty() ? "none" : met.c_str());
  }
  for (const LatencyTarget& target : kLatencyTargets)
    row(fmt::format("Longest prompt for {} ({})", target.name, duration(target.seconds)),
        fmt::format("{} tokens computed, {} with 90 % of them cached",
                    longest_prompt_within(*report.speed, d, target.seconds, 0),
                    longest_prompt_within(*report.speed, d, target.seconds, 0.9)));
}

void print_levers(const PlanReport& report) {
  if (report.levers.empty()) return;
  title("Levers, the strongest first");
  std::printf("%-68s %10s %9s %12s\n", "", "requests/s", "at once", "first token");
  const auto line = [](const std::string& name, const Capacity& c) {
    std::printf("%-68s %10s %9.0f %12s\n", name.c_str(), rate(c.max_rate).c_str(),
                std::floor(c.memory_requests), duration(c.ttft_seconds).c_str());
  };
  line("as planned", report.capacity);
  for (const Lever& lever : report.levers)
    line(lever.option.empty() ? lever.name : fmt::format("{}: {}", lever.name, lever.option),
         lever.after);
}

}  // namespace

std::vector<int> listed_lengths(const PlanReport& report) {
  int longest = report.deployment.shape.context_len;
  if (report.server) longest = std::min(longest, report.server->max_model_len);
  std::vector<int> lengths;
  for (int length = 128; length < longest; length *= 4) lengths.push_back(length);
  lengths.push_back(longest);
  return lengths;
}

std::vector<std::pair<std::string, KvTypes>> listed_kv_types(const ModelShape& shape) {
  if (shape.kv_layers.front().is_latent)  // kept as no other type
    return {{"f16", {KvType::kF16, KvType::kF16}}, {"bf16", {KvType::kBF16, KvType::kBF16}}};
  return {{"f16", {KvType::kF16, KvType::kF16}},
          {"int8", {KvType::kInt8, KvType::kInt8}},
          {"k=int8,v=int4", {KvType::kInt8, KvType::kInt4}},
          {"int4", {KvType::kInt4, KvType::kInt4}}};
}

void print_plan(const PlanReport& report) {
  print_subject(report);
  print_memory(report);
  if (report.kv_budget_bytes > 0) print_concurrency(report);
  if (report.speed) {
    if (report.capacity.fits()) print_workload(report);
    print_decode(report);
    print_first_token(report);
    print_levers(report);
  }
  std::fflush(stdout);
}

}  // namespace larder
