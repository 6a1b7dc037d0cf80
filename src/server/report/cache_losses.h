// Many cache reports summed up: what was lost to what, greatest loss first.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/json_reader.h"

namespace larder {

struct CacheLoss {
  std::string why;  // a class of divergence, or a reason
  std::string segment;  // of the prompt: "system", "tools", ...; "" = none
  std::int64_t num_tokens = 0;
  std::int64_t num_requests = 0;
  std::string advice;
  std::string old_text, new_text;  // of the first such request
};

// Sums of "cache.report" objects (cache_report.h). Thread: one at a time.
class CacheLosses {
 public:
  // Throws Error{kInvalidArgument} when it is no report.
  void add(const Json& report);

  std::int64_t num_requests() const { return num_requests_; }
  std::int64_t num_prompt_tokens() const { return num_prompt_tokens_; }
  std::int64_t num_cached_tokens() const { return num_cached_tokens_; }
  // Never seen, or too short to matter: nothing can be done about those.
  std::int64_t num_new_tokens() const { return num_new_tokens_; }
  std::vector<CacheLoss> sorted() const;

 private:
  std::int64_t num_requests_ = 0, num_prompt_tokens_ = 0, num_cached_tokens_ = 0,
               num_new_tokens_ = 0;
  std::map<std::string, CacheLoss> losses_;
};

}  // namespace larder
