// How several machines share out a model's matrix products: by outputs.
//
// An output of a product has the same bits wherever it is computed, since it is a sum over the inputs in one order. So
// each machine computes some of every matrix' outputs from the whole of its input, and nothing is ever added up over
// machines: who computes what decides no bit (promise 1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace larder {

struct RowRange {
  int begin = 0;
  int end = 0;
  int size() const { return end - begin; }
};

// Rows of a matrix, its outputs, go to machines in order, in whole units: two panels, as kernels take them, and one
// group of what the next product takes in 8 bits.
inline constexpr int kSplitRows = 32;

// Immutable. No allocation. Thread: any.
class OutputSplit {
 public:
  static constexpr int kMaxMachines = 64;
  static constexpr std::uint32_t kMaxShare = 1U << 20;

  OutputSplit() = default;  // one machine has all
  // In proportion to these, one a machine; the first is the server. Throws Error{kInvalidArgument} unless there are
  // 1 to kMaxMachines, each 1 to kMaxShare.
  explicit OutputSplit(std::span<const std::uint32_t> shares);

  int num_machines() const { return num_machines_; }
  bool is_shared() const { return num_machines() > 1; }
  std::span<const std::uint32_t> shares() const { return std::span(shares_).first(static_cast<std::size_t>(num_machines_)); }
  // Of a matrix of num_rows; may be empty.
  RowRange rows_of(int machine, int num_rows) const;

 private:
  std::array<std::uint32_t, kMaxMachines> shares_ = {1};
  int num_machines_ = 1;
};

// What one of the machines holds.
struct MachineShare {
  OutputSplit split;
  int machine = 0;  // 0 = the server, which also has all that is not shared out

  bool is_server() const { return machine == 0; }
  RowRange rows_of(int num_rows) const { return split.rows_of(machine, num_rows); }
};

}  // namespace larder
