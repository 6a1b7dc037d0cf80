// The plan for programs. Bytes, seconds, tokens.
#include <cmath>

#include "cli/plan_report.h"
#include "kv/kv_type_names.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

Json capacity_json(const Capacity& c) {
  return {{"requests_by_memory", c.memory_requests},
          {"request_kv_bytes", c.request_kv_bytes},
          {"longest_request_tokens", c.longest_request},
          {"ttft_seconds", c.ttft_seconds},
          {"decode_tokens_per_second_alone", c.decode_rate_alone},
          {"decode_tokens_per_second_full", c.decode_rate_full},
          {"max_requests_per_second", c.max_rate}};
}

Json server_json(const Plan& plan) {
  return {{"weights_bytes", plan.footprint.weights_bytes},
          {"scratch_bytes", plan.footprint.scratch_bytes},
          {"process_bytes", plan.footprint.process_bytes},
          {"kv_bytes", plan.kv_bytes},
          {"draft_bytes", plan.draft_bytes()},
          {"draft_kv_bytes", plan.draft_kv_bytes},
          {"total_bytes", plan.total_bytes()},
          {"bookkeeping_bytes", plan.footprint.bookkeeping_bytes},
          {"num_blocks", plan.num_blocks},
          {"block_bytes", plan.block_bytes},
          {"max_model_len", plan.max_model_len},
          {"max_concurrency", plan.max_concurrency},
          {"kv_capacity_tokens", plan.kv_capacity_tokens}};
}

Json memory_json(const PlanReport& report) {
  const Deployment& d = report.deployment;
  Json json;
  json["weights_format"] = d.weights.name;
  json["weights_bytes"] = std::round(weights_bytes(d.shape, d.weights));
  for (const WeightFormat& format : weight_formats())
    if (format.name != "mxfp4" || d.shape.num_experts > 0)
      json["weights_bytes_by_type"][format.name] = std::round(weights_bytes(d.shape, format));
  json["kv_type"] = format_kv_types(d.kv_types);
  json["kv_bytes_per_token"] = KvLayout(d.shape.kv_layers, d.kv_types).bytes_per_token();
  for (const auto& [name, types] : listed_kv_types(d.shape))
    json["kv_bytes_per_token_by_type"][name] =
        KvLayout(d.shape.kv_layers, types).bytes_per_token();
  json["kv_budget_bytes_per_device"] = std::round(report.kv_budget_bytes);
  json["max_context_for_budget"] = Json::array();
  for (const int users : {1, 10, 50, 100})
    json["max_context_for_budget"].push_back(
        {{"requests", users},
         {"tokens", max_context_for_budget(d, std::max(0.0, report.kv_budget_bytes), users)}});
  return json;
}

Json speed_json(const PlanReport& report) {
  const Deployment& d = report.deployment;
  Json json;
  json["source"] = report.is_calibrated ? "measured" : "roofline";
  json["decode"] = Json::array();
  std::vector<int> lengths = listed_lengths(report);
  lengths.insert(lengths.begin(), 0);
  for (const int length : lengths)
    for (const int count : {1, 8, 64})
      json["decode"].push_back(
          {{"context", length},
           {"requests", count},
           {"tokens_per_second",
            count / decode_step_seconds(*report.speed, d, count, length)}});
  json["first_token"] = Json::array();
  for (const int length : listed_lengths(report))
    json["first_token"].push_back(
        {{"prompt", length},
         {"seconds", prefill_seconds(*report.speed, d, length, 0)},
         {"seconds_all_cached",
          prefill_seconds(*report.speed, d, length, d.num_cached(length, 1))}});
  for (const LatencyTarget& target : kLatencyTargets)
    json["targets"][target.name] = {
        {"seconds", target.seconds},
        {"longest_prompt", longest_prompt_within(*report.speed, d, target.seconds, 0)},
        {"longest_prompt_90_percent_cached",
         longest_prompt_within(*report.speed, d, target.seconds, 0.9)}};
  return json;
}

}  // namespace

Json plan_json(const PlanReport& report) {
  const Deployment& d = report.deployment;
  const Machine& m = d.machine;
  Json json;
  json["model"] = {{"name", d.shape.name},
                   {"layers", d.shape.num_layers()},
                   {"context_length", report.trained_context_len},
                   {"parameters", d.shape.num_parameters()},
                   {"active_parameters", d.shape.num_active_parameters()}};
  json["machine"] = {{"name", m.name},
                     {"devices", d.num_devices},
                     {"memory_bytes", m.memory_bytes},
                     {"read_bytes_per_second", m.read_bytes_per_s},
                     {"f32_ops_per_second", m.peak(OpsKind::kF32)},
                     {"bf16_ops_per_second", m.peak(OpsKind::kBF16)},
                     {"int8_ops_per_second", m.peak(OpsKind::kInt8)},
                     {"int4_ops_per_second", m.peak(OpsKind::kInt4)}};
  json["fits"] = report.shortage.empty();
  if (!report.shortage.empty()) json["shortage"] = report.shortage;
  if (report.server) json["server"] = server_json(*report.server);
  json["memory"] = memory_json(report);
  if (!report.speed) return json;
  const Workload& w = report.workload;
  json["workload"] = {{"prompt", w.prompt_len},
                      {"output", w.output_len},
                      {"requests_per_second", w.rate},
                      {"cached_share", w.cached_share}};
  json["capacity"] = capacity_json(report.capacity);
  const double present = report.capacity.requests_present;
  // null: the line grows for ever.
  if (w.rate > 0)
    json["capacity"]["requests_by_littles_law"] = std::isinf(present) ? Json() : Json(present);
  json["speed"] = speed_json(report);
  json["levers"] = Json::array();
  for (const Lever& lever : report.levers) {
    Json entry = {{"name", lever.name}, {"option", lever.option}};
    entry.update(capacity_json(lever.after));
    json["levers"].push_back(entry);
  }
  return json;
}

}  // namespace larder
