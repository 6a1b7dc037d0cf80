// larder plan: what a model takes, before anything is taken.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/runtime.h"
#include "kv/kv_type_names.h"

namespace larder {
namespace {

void print_plan(const RuntimeOptions& options) {
  ThreadPool pool(options.num_threads > 0
                      ? options.num_threads
                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const PlannedModel planned = plan_model(options, pool);
  const Plan& plan = planned.plan;
  const auto row = [](const char* name, const std::string& value) {
    std::printf("%-34s %s\n", name, value.c_str());
  };
  row("Weights", format_bytes(plan.footprint.weights_bytes));
  row("Scratch of a step", format_bytes(plan.footprint.scratch_bytes));
  row("Process", format_bytes(plan.footprint.process_bytes));
  row("KV cache", format_bytes(plan.kv_bytes));
  row("Total", format_bytes(plan.total_bytes()));
  row("KV type", format_kv_types(planned.layout->types()));
  row("KV bytes per token", fmt::format("{}", plan.kv_bytes_per_token));
  row("KV blocks", fmt::format("{} of {}", plan.num_blocks, format_bytes(plan.block_bytes)));
  row("Longest prompt and output, tokens", fmt::format("{}", plan.max_model_len));
  row("KV capacity, tokens", fmt::format("{}", plan.kv_capacity_tokens));
  for (int length = 512; length < 2 * plan.max_model_len; length *= 4) {
    const int tokens = std::min(length, plan.max_model_len);
    const std::int64_t blocks =
        planned.layout->num_blocks_for(tokens, plan.footprint.max_batch_tokens);
    row(fmt::format("Requests of {} tokens at once", tokens).c_str(),
        fmt::format("{:.1f}", static_cast<double>(plan.num_blocks) / static_cast<double>(blocks)));
    if (tokens == plan.max_model_len) break;
  }
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<RuntimeOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "What a model takes: weights, KV bytes per token, capacity, concurrency");
  add_runtime_options(*command, *options);
  command->callback([options] { print_plan(*options); });
}

}  // namespace larder
