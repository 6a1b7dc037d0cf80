// eviction_bench [--blocks N,N...] [--idle] [LOAD...]: hits of each eviction policy on each load.
//
// A load is a generator's name, - for a trace on stdin, or a file (one JSON object a line,
// hash_ids). With --perturb, loads are also replayed in part, from the middle, and mixed with others.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "replay.h"
#include "trace.h"

namespace larder {
namespace {

Trace load(const std::string& name) {
  if (name == "-") return read_trace(std::cin);
  for (const std::string_view generator : trace_generators()) {
    if (name == generator) return generate_trace(name);
  }
  std::ifstream file(name);
  if (!file) throw Error(ErrorKind::kNotFound, fmt::format("{}: no such load or file", name));
  return read_trace(file);
}

std::vector<Trace> perturbed(const Trace& trace) {
  return {from_fraction(trace, 0.5), keep_sessions(trace, 0.5), keep_sessions(trace, 0.25),
          mix(trace, generate_trace("agent")), mix(trace, generate_trace("rag"))};
}

void print_row(const Trace& trace, int capacity, CapacityOf of) {
  const ReplayResult lru = replay(trace, EvictionKind::kLru, capacity, of);
  const ReplayResult density = replay(trace, EvictionKind::kDensity, capacity, of);
  const ReplayResult belady = replay_belady(trace, capacity, of);
  const auto share_of = [&](const ReplayResult& other) {
    return other.num_hits > 0 ? fmt::format("{:.2f}", density.hit_ratio() / other.hit_ratio()) : "-";
  };
  fmt::print("| {} | {} | {:.2f} % | {:.2f} % | {:.2f} % | {} | {} | {:.0f} | {:.0f} |\n",
             trace.name, capacity, 100 * lru.hit_ratio(), 100 * density.hit_ratio(),
             100 * belady.hit_ratio(), share_of(lru), share_of(belady),
             lru.ns_per_block, density.ns_per_block);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  CLI::App app("Hits of each eviction policy");
  std::vector<int> capacities = {1000, 3000, 10000};
  std::vector<std::string> names;
  bool perturbs = false;
  bool counts_idle = false;
  app.add_option("--blocks", capacities, "Capacities of the pool")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(16, 1 << 24));
  app.add_flag("--perturb", perturbs, "Replay each load in other ways, too");
  app.add_flag("--idle", counts_idle,
               "The capacity is what stays between two requests, not the whole pool");
  app.add_option("loads", names, "Generators' names, files, or - (default: all generators)");
  CLI11_PARSE(app, argc, argv);
  if (names.empty()) names.assign(trace_generators().begin(), trace_generators().end());
  fmt::print(
      "| load | blocks | lru | density | Belady | of lru | of Belady | lru, ns a block | density, ns "
      "a block |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const std::string& name : names) {
    std::vector<Trace> traces = {load(name)};
    if (perturbs) {
      for (Trace& other : perturbed(traces.front())) traces.push_back(std::move(other));
    }
    for (const Trace& trace : traces) {
      for (const int capacity : capacities)
        print_row(trace, capacity, counts_idle ? CapacityOf::kIdle : CapacityOf::kPool);
    }
  }
  return 0;
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
  try {
    return larder::run(argc, argv);
  } catch (const larder::Error& error) {
    fmt::print(stderr, "eviction_bench: {}\n", error.what());
    return 1;
  }
}
