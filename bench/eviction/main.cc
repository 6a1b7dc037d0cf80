// eviction_bench [--blocks N...] [LOAD...]: hits of each eviction policy on each load.
//
// A load is a generator's name, - for a trace on stdin, or a file (one JSON object a line, hash_ids).
// With --perturb, recorded traces are also replayed in part, from the middle, and mixed with others.
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

void print_rows(const Trace& trace, int capacity) {
  const double lru = replay(trace, EvictionKind::kLru, capacity).hit_ratio();
  const double belady = replay_belady(trace, capacity).hit_ratio();
  const auto print = [&](const char* policy, const ReplayResult& result) {
    fmt::print("| {} | {} | {} | {:.2f} % | {:.2f} | {:.2f} | {:.0f} |\n", trace.name, capacity,
               policy, 100 * result.hit_ratio(), result.hit_ratio() / lru,
               result.hit_ratio() / belady, result.ns_per_block);
  };
  print("lru", replay(trace, EvictionKind::kLru, capacity));
  print("density", replay(trace, EvictionKind::kDensity, capacity));
  ReplayResult best;
  best.num_blocks = 1'000'000;
  best.num_hits = static_cast<std::int64_t>(belady * 1e6);
  print("belady", best);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  CLI::App app("Hits of each eviction policy");
  std::vector<int> capacities = {1000, 3000, 10000};
  std::vector<std::string> names;
  bool perturbs = false;
  app.add_option("--blocks", capacities, "Capacities of the pool")->check(CLI::Range(16, 1 << 24));
  app.add_flag("--perturb", perturbs, "Replay recorded traces in other ways, too");
  app.add_option("loads", names, "Generators' names, files, or - (default: all generators)");
  CLI11_PARSE(app, argc, argv);
  if (names.empty()) names.assign(trace_generators().begin(), trace_generators().end());
  fmt::print("| load | blocks | policy | token hits | of LRU | of Belady | ns per block |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const std::string& name : names) {
    std::vector<Trace> traces = {load(name)};
    if (perturbs) {
      for (Trace& other : perturbed(traces.front())) traces.push_back(std::move(other));
    }
    for (const Trace& trace : traces) {
      for (const int capacity : capacities) print_rows(trace, capacity);
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
