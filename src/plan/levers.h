// What could be changed about a deployment, in order of what it would bring.
#pragma once

#include <string>
#include <vector>

#include "plan/capacity.h"

namespace larder {

struct Lever {
  std::string name;    // what to do
  std::string option;  // how to say it to `larder`; "" where it is not an option
  Capacity after;      // with this change alone
};

// Sorted by the requests a second that they allow, then by time to first token. Those that change
// neither are left out. kv_budget_bytes as for plan_capacity().
std::vector<Lever> list_levers(const Deployment& deployment, const StepSpeed& speed,
                               const Workload& workload, double kv_budget_bytes);

}  // namespace larder
