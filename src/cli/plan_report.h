// What `larder plan` found, and its two forms.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "plan/capacity.h"
#include "plan/levers.h"
#include "plan/plan.h"

namespace larder {

struct PlanReport {
  Deployment deployment;            // its context is that of -c, if given
  int trained_context_len = 0;
  Workload workload;
  // Of one device, for the KV cache; 0 = what the weights leave of the memory.
  double kv_budget_bytes = 0;
  std::optional<Plan> server;       // what `larder serve` will take: a file on this machine
  std::optional<StepSpeed> speed;   // none: only memory is planned
  bool is_calibrated = false;       // speed was measured with the file, else it is the roofline's
  Capacity capacity;                // when there is a speed
  std::vector<Lever> levers;        // the same
  std::string shortage;             // "" = it fits
};

// Lengths of prompts that a plan lists, up to what fits.
std::vector<int> listed_lengths(const PlanReport& report);
// The types that a plan compares, by their names.
std::vector<std::pair<std::string, KvTypes>> listed_kv_types(const ModelShape& shape);

void print_plan(const PlanReport& report);
nlohmann::ordered_json plan_json(const PlanReport& report);

}  // namespace larder
