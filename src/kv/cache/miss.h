// What the cache knows of the tokens that it had not.
#pragma once

#include <cstdint>

namespace larder {

// Why a span of a prompt's tokens has to be computed, as far as the cache can tell.
enum class MissCause : std::uint8_t {
  kUnknown,     // never seen, or so long ago that nothing is known of it
  kEvicted,     // for room, or on demand; or from a tier that was about to be read
  kExpired,     // a pin had kept it, and its time was up
  kWindowSlid,  // blocks of sliding layers that a query there still sees have been given up
  kTierFailed,  // a tier had it and did not deliver for a fault, or is out of use or too busy
  kOtherModel,  // a tier has it, of another model, KV type or instruction set
  kTooShort,    // cheaper to compute than to load; and the last token, whose logits are wanted
  kBypassed,    // the request itself wants it computed: logprobs of the prompt, its own window
};

// Tokens [begin, end) of a prompt.
struct MissedSpan {
  int begin = 0;
  int end = 0;
  MissCause cause = MissCause::kUnknown;
  // Of evicted and expired ones, as EvictedBlock has them for the first block; 0 = not known.
  std::int64_t evicted_ns = 0;
  float pool_in_use = 0;
  bool was_cleared = false;
};

}  // namespace larder
