// How weights that are read once, front to back, are fetched ahead of their use: what serves one
// processor costs another up to a third. Measured on each (bench/RESULTS.md).
#pragma once

namespace larder {

enum class StreamFetch {
  // Every line 1 KiB ahead, into the first-level cache. Zen 3: nearer is too late for 4 bits, farther
  // slower for 8. Also what an unknown processor gets.
  kNear,
  // Every line 8 KiB ahead into the second-level cache, which has more fetches under way, and 4 KiB
  // ahead into the first. Intel with AVX-512.
  kTwice,
  // The same, 4 KiB and 1 KiB ahead. Intel with AMX.
  kTwiceNear,
  // The begin of the next page: the processor reads on to a page's end by itself. Zen 4.
  kNextPage,
  // Every line 6 KiB ahead, past the second-level cache. Zen 5.
  kFar,
};

// What this machine wants; fixed before main().
extern const StreamFetch machine_stream_fetch;

}  // namespace larder
