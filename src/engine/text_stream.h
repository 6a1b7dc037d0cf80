// Output tokens to text as it may be shown: whole characters, and nothing of a stop string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// Strings that end a text, and what is left of a beginning of each where the text goes on otherwise. Made once for all
// texts that they may end.
class StopStrings {
 public:
  static constexpr std::size_t kMaxBytes = std::numeric_limits<std::uint16_t>::max();  // of one

  struct Pattern {
    std::string text;
    std::vector<std::uint16_t> fallback;  // longest proper border of text[0, i]
  };

  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> stops);

  const std::vector<Pattern>& patterns() const { return patterns_; }

 private:
  std::vector<Pattern> patterns_;
};

// Finds the first of several strings to be completed in text that arrives piecewise; what may yet
// become one is held back. Linear in the text for each string (Knuth, Morris, Pratt 1977), however
// it is cut. Thread: one at a time.
class StopFinder {
 public:
  // nullptr: there are none.
  explicit StopFinder(std::shared_ptr<const StopStrings> stops);

  // The text that is certainly before any stop string. After found(): "". Stops that are completed in text
  // that must not stop are passed over, and shown.
  std::string push(std::string_view text, bool may_stop = true);
  // What was held back, as no more text follows.
  std::string finish();

  bool found() const { return found_ >= 0; }
  // The one that was found, else "". Of two that end together, the longer.
  const std::string& stop() const;

 private:
  void advance(char next, bool may_stop);

  std::shared_ptr<const StopStrings> stops_;
  std::vector<std::uint16_t> num_matched_;  // of each
  std::string held_;
  int found_ = -1;  // which of them
};

// Thread: one at a time. The tokenizer must outlive it.
class TextStream {
 public:
  // include_stop: the stop string is part of the text. min_tokens: how many come before one that may
  // complete a stop string. The rest: see StreamDecoder.
  TextStream(const Tokenizer& tokenizer, std::shared_ptr<const StopStrings> stops, bool include_stop = false,
             bool show_special = false, bool continues_text = false, int min_tokens = 0)
      : decoder_(tokenizer, show_special, continues_text),
        finder_(std::move(stops)),
        include_stop_(include_stop),
        min_tokens_(min_tokens) {}

  // The text that this token completes, often all of it, possibly "". Ends at the stop string,
  // after which there is no more: the owner cancels the request.
  std::string push(TokenId token);
  // What was held back; call once, when no token follows. May stop, too.
  std::string finish();

  bool stopped() const { return finder_.found(); }
  const std::string& stop_string() const { return finder_.stop(); }

 private:
  std::string find(std::string_view text);

  StreamDecoder decoder_;
  StopFinder finder_;
  bool include_stop_;
  int min_tokens_;
  int num_tokens_ = 0;
};

}  // namespace larder
