// Sequences of requests, as blocks.
#pragma once

#include <cstdint>
#include <istream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// Each request is the blocks of its prompt, from the first on. Equal numbers stand for equal blocks
// after equal prefixes.
struct Trace {
  std::string name;
  std::vector<std::vector<std::int32_t>> requests;
};

// One JSON object a line, with hash_ids (Mooncake, FAST 2025). Throws Error{kInvalidArgument} that
// names the line.
Trace read_trace(std::istream& input);

// Loads with a fixed seed: loop, scan, zipf, agent, rag, coding.
std::span<const std::string_view> trace_generators();
Trace generate_trace(std::string_view name);

// What a policy that fits one trace may not rely on: part of its sessions, chosen by a hash of their
// second block; its requests from a fraction of it on; requests of another load in between.
Trace keep_sessions(const Trace& trace, double share);
Trace from_fraction(const Trace& trace, double begin);
Trace mix(const Trace& left, const Trace& right);

}  // namespace larder
