// How many requests, how long ones and how fast: what memory and speed come to under a workload.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/step_speed.h"

namespace larder {

struct Workload {
  int prompt_len = 2048;    // tokens
  int output_len = 256;     // tokens
  double rate = 0;          // requests a second that come in; 0 = not said
  double cached_share = 0;  // of a prompt, found in the cache
  int max_sequences = 256;  // at once, whatever the memory

  int request_len() const { return prompt_len + output_len; }
};

// Tokens of each of num_sequences when all that the weights leave of the memory is shared out.
std::int64_t max_context_for_budget(double memory_bytes, double model_weights_bytes,
                                    double kv_bytes_per_token, double num_sequences);
// The same in whole blocks of one device, and where windows stop growing; at most
// max_request_len(), which it is where a request's window keeps any length within the budget.
std::int64_t max_context_for_budget(const Deployment& deployment, double kv_budget_bytes,
                                    double num_sequences);

// Little's law (1961): requests present = rate * time that each is present, however many these are.
// Infinite when requests come in faster than they can be computed.
double requests_present(const StepSpeed& speed, const Deployment& deployment,
                        const Workload& workload);

struct Capacity {
  double request_kv_bytes = 0;       // of one request at its end, on one device
  double memory_requests = 0;        // such requests at once, by memory
  std::int64_t longest_request = 0;  // tokens, of one alone, at most max_request_len()
  double ttft_seconds = 0;           // of a prompt that comes alone
  double decode_rate_alone = 0;      // tokens a second of one request
  double decode_rate_full = 0;       // of all together, when the memory is full
  double max_rate = 0;               // requests a second that can go on for ever
  double requests_present = 0;       // at workload.rate; 0 = no rate; infinite above max_rate
  bool fits() const { return memory_requests >= 1; }
};

// kv_budget_bytes: of one device; 0 = what the weights leave of its memory.
Capacity plan_capacity(const Deployment& deployment, const StepSpeed& speed,
                       const Workload& workload, double kv_budget_bytes = 0);

// Time to first token that people accept.
struct LatencyTarget {
  const char* name;
  double seconds;
};
inline constexpr std::array kLatencyTargets = {
    LatencyTarget{"voice", 0.15}, LatencyTarget{"code", 0.2}, LatencyTarget{"chat", 0.5},
    LatencyTarget{"batch", 2.0}};

// The longest prompt whose first token comes within that time, when so much of it is cached; 0 =
// none.
int longest_prompt_within(const StepSpeed& speed, const Deployment& deployment, double seconds,
                          double cached_share);

// Why a deployment does not fit and what would; "" when it does.
std::string shortage(const Deployment& deployment, const Workload& workload,
                     double kv_budget_bytes = 0);

}  // namespace larder
