// The commands of the binary. Each adds itself to the app and runs when it was the one given.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/request.h"

namespace larder {

class Runtime;

void add_serve_command(CLI::App& app);
void add_worker_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_perplexity_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_pull_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_doctor_cache_command(CLI::App& doctor);

// What an option's text says; NaN, which is in no range, where it is no number.
double number_in(const std::string& text);
// CLI::Range of numbers, which takes "nan".
CLI::Validator finite_range(double least, double most);
// Refuses "", a variable that nobody has set, where that would be as if the option were not given.
CLI::Validator not_empty();

// --temperature, --top-p, ... and -n, on a command.
void add_sampling_options(CLI::App& command, SamplingParams& sampling);

// The lines that every start prints: machine, model, plan.
void print_start(const Runtime& runtime);

// A whole file. Throws Error{kNotFound}.
std::string read_text_file(const std::string& path);
// The same, or standard input for "-".
std::string read_input(const std::string& path);

}  // namespace larder
