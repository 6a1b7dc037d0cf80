// Messages of a chat one after the other, by which what a compaction sums up is known again.
#pragma once

#include <cstdint>
#include <vector>

#include "server/json_reader.h"

namespace larder {

// So many messages, and a digest of all of them in their order. None for 0.
struct SummedRun {
  std::uint64_t num_messages = 0;
  std::uint64_t digest = 0;
};

// By role and text each, but for line ends, as parts of a content are put together in several ways. The system's do not
// count: they may be others from one request to the next.
class MessageRun {
 public:
  void add(const Json& message);
  void drop_last();  // which is no system's

  SummedRun whole() const { return {marks_.size(), prefixes_.back()}; }
  // Whether these messages are among its own, in sequence. Takes a time as long as the run, however many agree in part.
  bool has(const SummedRun& run) const;
  // Whether these are its last ones, or it has none as they have not.
  bool ends_with(const Json& messages) const;

 private:
  std::vector<std::uint64_t> marks_;
  // Of the first marks, so many of them: sums over their powers (Karp and Rabin 1987), so that a part's digest is made of
  // two.
  std::vector<std::uint64_t> prefixes_{0};
};

}  // namespace larder
