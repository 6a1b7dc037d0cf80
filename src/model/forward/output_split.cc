#include "model/forward/output_split.h"

#include <algorithm>

#include "base/error.h"

namespace larder {

OutputSplit::OutputSplit(std::span<const std::uint32_t> shares) {
  if (shares.empty() || shares.size() > kMaxMachines)
    throw_invalid("shares of {} machines; 1 to {} are possible", shares.size(), kMaxMachines);
  for (const std::uint32_t share : shares)
    if (share == 0 || share > kMaxShare) throw_invalid("a share of {}; 1 to {} are possible", share, kMaxShare);
  std::ranges::copy(shares, shares_.begin());
  num_machines_ = static_cast<int>(shares.size());
}

RowRange OutputSplit::rows_of(int machine, int num_rows) const {
  const auto index = static_cast<std::size_t>(machine);
  const std::int64_t num_units = (std::int64_t{num_rows} + kSplitRows - 1) / kSplitRows;
  std::int64_t before = 0, all = 0;
  for (std::size_t i = 0; i < shares().size(); ++i) {
    if (i < index) before += shares_[i];
    all += shares_[i];
  }
  // To the nearest unit, so that a small matrix goes to who has most.
  const auto bound = [&](std::int64_t part) {
    const std::int64_t units = (2 * num_units * part + all) / (2 * all);
    return static_cast<int>(std::min<std::int64_t>(units * kSplitRows, num_rows));
  };
  return {bound(before), bound(before + shares_[index])};
}

}  // namespace larder
