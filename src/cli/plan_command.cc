// larder plan: what a model takes and how fast it can be, before anything is taken.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/plan_report.h"
#include "cli/pull.h"
#include "cli/runtime.h"
#include "cli/server_memory.h"
#include "cli/service_options.h"
#include "engine/request.h"
#include "engine/request_check.h"
#include "kv/kv_type_names.h"
#include "plan/calibrate.h"
#include "plan/published_models.h"

namespace larder {
namespace {

struct PlanCommandOptions {
  RuntimeOptions runtime;
  ServerMemoryOptions server;
  ServiceOptions service;  // taken and not used
  Workload workload;
  bool has_prompt_len = false;  // else the workload's may be cut to what fits
  bool has_output_len = false;
  std::string machine = "this";
  std::string weights;  // "" = the file's, or as published
  int num_devices = 1;
  double cached_percent = 0;
  bool json = false;
  bool no_measure = false;
  bool list = false;
};

bool is_this_machine(const PlanCommandOptions& options) { return options.machine == "this"; }

// A file comes before a published name, as far as it is there or can be fetched.
bool is_published(const std::string& name) {
  std::error_code error;  // left to find_model()
  if (std::filesystem::exists(name, error) || error || !find_published_model(name)) return false;
  return std::ranges::none_of(known_models(),
                              [&](const KnownModel& known) { return name == known.name; });
}

std::string not_found_text(const std::string& name) {
  std::string similar;
  for (const std::string& known : similar_model_names(name))
    similar += (similar.empty() ? "; published models like it: " : ", ") + known;
  return similar + " (larder plan --list shows all)";
}

class Planner {
 public:
  explicit Planner(const PlanCommandOptions& options)
      : options_(options),
        device_(open_device(options.runtime)),
        pool_(num_threads_of(options.runtime)) {}

  PlanReport run() {
    const PlanOptions asked = plan_options(options_.runtime);
    Deployment& d = report_.deployment;
    d.kv_types = parse_kv_types(options_.runtime.kv_type);
    d.num_devices = options_.num_devices;
    d.max_batch_tokens = options_.runtime.max_batch_tokens;
    d.attention = options_.runtime.attention;
    d.max_endless_tokens = kMaxEndlessTokens;
    if (is_published(options_.runtime.model)) {
      d.shape = *find_published_model(options_.runtime.model);
      d.weights = published_weight_format(options_.runtime.model);
      warn_beyond_training(options_.runtime, d.shape.context_len);
      choose_machine();
    } else {
      plan_file();
    }
    if (d.shape.kv_layers.front().is_latent) check_latent_types(d.kv_types, options_.runtime);
    if (!options_.weights.empty()) d.weights = parse_weight_format(options_.weights);
    report_.trained_context_len = d.shape.context_len;
    if (asked.max_model_len > 0) d.shape.context_len = asked.max_model_len;
    if (!report_.server) {  // else they count already
      const bool is_there = report_.shortage.empty();
      if (asked.memory_bytes > 0 && (is_there || asked.memory_bytes < d.machine.memory_bytes))
        d.machine.memory_bytes = asked.memory_bytes;
      if (asked.kv_bytes > 0) report_.kv_budget_bytes = static_cast<double>(asked.kv_bytes);
    }
    fill_workload();
    const double budget = report_.kv_budget_bytes;
    if (budget == 0)
      report_.kv_budget_bytes =
          static_cast<double>(d.machine.memory_bytes) - d.device_weights_bytes();
    if (report_.shortage.empty()) report_.shortage = shortage(d, report_.workload, budget);
    if (report_.shortage.empty() && asked.max_model_len > 0)
      report_.shortage = shortage_of_length(asked.max_model_len, budget);
    if (!report_.speed && d.machine.read_bytes_per_s > 0) report_.speed = roofline(d);
    if (report_.speed) {
      report_.capacity = plan_capacity(d, *report_.speed, report_.workload, budget);
      report_.levers = list_levers(d, *report_.speed, report_.workload, budget);
    }
    return std::move(report_);
  }

 private:
  void choose_machine() {
    Machine& machine = report_.deployment.machine;
    if (!is_this_machine(options_)) {
      machine = find_machine(options_.machine);
      return;
    }
    const std::int64_t available_bytes =
        device_ ? plannable_bytes(device_.get()) : available_memory_bytes();
    if (options_.no_measure) {
      machine.name = device_ ? device_->describe() : "this machine";
      machine.is_measured = true;
    } else {
      const ActivationType activations = activations_of(options_.runtime);
      machine = device_ ? measure_device(*device_, pool_, activations)
                        : measure_machine(select_kernels(), pool_, activations);
    }
    machine.memory_bytes = available_bytes;
  }

  void plan_file() {
    // What this machine has is asked only where the plan is for it, with the weights of the file.
    const bool is_for_server = is_this_machine(options_) && options_.weights.empty();
    PlannedModel planned;
    try {
      if (is_for_server)
        plan_on_into(planned, options_.runtime, pool_, device_);
      else
        planned.file = read_model_file(options_.runtime);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kNotFound)
        throw Error(error.kind(), error.what() + not_found_text(options_.runtime.model));
      // What it would take elsewhere is told all the same.
      if (error.kind() != ErrorKind::kUnavailable || planned.file.path.empty()) throw;
      report_.shortage = error.what();
    }
    Deployment& d = report_.deployment;
    const GgufFile& gguf = planned.file.files->gguf();
    d.shape = model_shape(planned.file.config, gguf);
    if (d.shape.name.empty()) d.shape.name = planned.file.path;
    d.weights = file_weight_format(d.shape, gguf, planned.file.weights_bytes);
    choose_machine();
    if (!is_for_server || !report_.shortage.empty()) return;
    report_.server = planned.plan;
    report_.kv_budget_bytes = static_cast<double>(planned.plan.kv_bytes);
    // It was there when the plan was made, whatever was free a moment later.
    d.machine.memory_bytes =
        std::max(d.machine.memory_bytes,
                 static_cast<std::int64_t>(d.device_weights_bytes()) + planned.plan.kv_bytes + 1);
    if (options_.no_measure) return;
    TransformerLimits limits = planned.limits;
    limits.split = {};  // what workers would add is not measured
    report_.speed = calibrate(planned.file.config, gguf,
                              {.kv_types = d.kv_types, .limits = limits, .device = device_.get()}, pool_);
    report_.is_calibrated = true;
  }

  // A server takes no -c of which the cache does not hold one request, one without a window, too.
  std::string shortage_of_length(int num_tokens, double budget) const {
    Deployment all_seen = report_.deployment;
    all_seen.attention = {};
    return shortage(all_seen, {.prompt_len = num_tokens - 1, .output_len = 1}, budget);
  }

  void fill_workload() {
    Workload& w = report_.workload;
    w = options_.workload;
    w.cached_share = options_.cached_percent / 100;
    const Deployment& d = report_.deployment;
    w.max_sequences = std::min(options_.runtime.max_sequences, d.max_running());
    int longest = d.shape.context_len;
    if (report_.server) longest = std::min(longest, report_.server->max_model_len);
    check_span(d.attention, {.max_model_len = longest, .max_batch_tokens = d.max_batch_tokens}, kSpanOptions);
    fit_lengths(w, d.attention.window > 0 ? d.max_request_len() : longest);
  }

  // Cuts the lengths that nobody gave; those that were given must fit.
  void fit_lengths(Workload& w, int longest) const {
    const int prompt_len = options_.has_prompt_len ? w.prompt_len : 1;
    const int output_len = options_.has_output_len ? w.output_len : 1;
    if (prompt_len + output_len > longest)
      throw_invalid("{} {}: the context holds {} tokens of prompt and output together; give fewer",
                    prompt_len >= output_len ? "--prompt" : "--output",
                    std::max(prompt_len, output_len), longest);
    if (!options_.has_output_len)
      w.output_len = std::min(
          w.output_len, options_.has_prompt_len ? longest - prompt_len : std::max(1, longest / 2));
    if (!options_.has_prompt_len) w.prompt_len = std::min(w.prompt_len, longest - w.output_len);
  }

  const PlanCommandOptions& options_;
  std::unique_ptr<Device> device_;  // null = the CPU
  ThreadPool pool_;
  PlanReport report_;
};

// What would go unheeded, or cannot be.
void check_plan_options(const PlanCommandOptions& options) {
  const RuntimeOptions& runtime = options.runtime;
  if (runtime.device != "cpu" && !is_this_machine(options))
    throw_invalid("--device {} and --machine {}: give one of them; --device is a GPU of this machine", runtime.device,
                  options.machine);
  check_options(runtime);
  const bool is_for_server = is_this_machine(options) && options.weights.empty() && !is_published(runtime.model);
  const char* const of_server = !runtime.draft_model.empty()         ? "--draft-model"
                                : !runtime.workers.addresses.empty() ? "--workers"
                                                                     : nullptr;
  if (of_server != nullptr && !is_for_server)
    throw_invalid("{}: planned for a model's file on this machine; leave out --machine and --weights", of_server);
  if (options.num_devices > 1 && is_this_machine(options))
    throw_invalid("--tp: this machine is one device; name another by --machine");
}

void plan(const PlanCommandOptions& options) {
  const PlanReport report = Planner(options).run();
  using Json = nlohmann::ordered_json;
  if (options.json)  // a path in it need not be UTF-8
    std::puts(plan_json(report).dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  else
    print_plan(report);
  std::fflush(stdout);
  if (!report.shortage.empty()) throw Error(ErrorKind::kUnavailable, report.shortage);
}

void list_json() {
  nlohmann::ordered_json json = {{"models", published_model_names()},
                                 {"machines", nlohmann::ordered_json::array({"this"})},
                                 {"weights", nlohmann::ordered_json::array({"f16"})}};
  for (const Machine& machine : named_machines()) json["machines"].push_back(machine.name);
  for (const WeightFormat& format : weight_formats()) json["weights"].push_back(format.name);
  std::puts(json.dump(2).c_str());
}

void list() {
  std::puts("Models, beside files and those that `larder pull` knows:");
  for (const std::string& name : published_model_names()) std::printf("  %s\n", name.c_str());
  std::puts("Machines:\n  this");
  for (const Machine& machine : named_machines()) std::printf("  %s\n", machine.name.c_str());
  std::puts("Weights:\n  f16");
  for (const WeightFormat& format : weight_formats()) std::printf("  %s\n", format.name.c_str());
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanCommandOptions>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "What a model takes and brings: memory, context, concurrency, speed, and what to change");
  add_runtime_options(*command, options->runtime);
  add_server_memory_options(*command, options->server);
  add_unused_options(*command, [&] {
    add_listen_options(*command, options->service);
    add_service_options(*command, options->service);
  });
  command->add_option("--machine", options->machine,
                      "this one, measured, with --device cuda:0 its GPU (default); or H100, H200, A100, L4, "
                      "\"RTX 4090\"");
  command
      ->add_option("--tp,--devices", options->num_devices,
                   "So many of the machine, which share out weights and KV heads (default 1)")
      ->check(CLI::Range(1, kMaxDevices));
  command->add_option("--weights", options->weights,
                      "Plan for weights as f32, f16, bf16, fp8, q8_0, mxfp4 or q4_0 (default: "
                      "as the file has them or the model is published)");
  command->add_option("--prompt", options->workload.prompt_len, "Tokens of a prompt (default 2048)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--output", options->workload.output_len, "Tokens of an answer (default 256)")
      ->check(CLI::Range(1, 1 << 24));
  command->add_option("--rate", options->workload.rate, "Requests a second that come in")
      ->check(finite_range(0, 1e9));
  command->add_option("--cached", options->cached_percent,
                      "Percent of a prompt that the cache has (default 0)")
      ->check(finite_range(0, 100));
  command->add_flag("--json", options->json, "For programs");
  command->add_flag("--no-measure", options->no_measure, "Memory alone: measure no speed here");
  command->add_flag("--list", options->list, "The published models and the machines");
  command->callback([options, command] {
    options->has_prompt_len = command->count("--prompt") > 0;
    options->has_output_len = command->count("--output") > 0;
    if (options->list) return options->json ? list_json() : list();
    check_plan_options(*options);
    keep_server_memory(options->server, options->runtime);
    plan(*options);
  });
}

}  // namespace larder
