// Keeps the ledger of prompts and the reports made with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/ledger.h"
#include "engine/request.h"
#include "server/report/cache_report.h"
#include "server/report/metrics.h"
#include "tokenizer/tokenizer.h"

namespace larder {

struct CacheLogLimits {
  std::size_t max_ledger_bytes = std::size_t{32} << 20;
  std::size_t max_reports = 4096;

  std::size_t max_bytes() const { return max_ledger_bytes + max_reports * kReportBytes; }
  static constexpr std::size_t kReportBytes = 2048;  // some 600 are usual
};

// A prompt on its way: compared, not yet computed.
struct OpenPrompt {
  std::uint64_t tenant = 0;
  std::string id;
  Comparison comparison;
  std::optional<Divergence> divergence;
  std::optional<RequestedComparison> requested;
  std::vector<std::string> normalised;
  int num_kept_tokens = 0;
};

// Thread: any.
class CacheLog {
 public:
  // References must outlive it. tier_names: EngineStats::tier_names.
  CacheLog(const Tokenizer& tokenizer, ServerMetrics& metrics, std::vector<std::string> tier_names,
           CacheLogLimits limits = {});

  // Before the prompt is submitted. comparison_id: a reply to compare it with, besides.
  OpenPrompt open(PromptOrigin origin, std::span<const TokenId> prompt,
                  const std::optional<std::string>& comparison_id);
  // With its first update. The report is kept, counted and logged.
  CacheReport explain(const OpenPrompt& prompt, const RequestUpdate& update);
  // When one of its choices has ended that the client is shown.
  void complete(const OpenPrompt& prompt, std::span<const TokenId> generated);
  // When nothing more will come of it.
  void close(const OpenPrompt& prompt);

  // Another tenant's are not found.
  std::optional<Json> find(const std::string& id, std::uint64_t tenant) const;
  // The newest first, at most num_most.
  Json list(std::uint64_t tenant, std::size_t num_most) const;
  std::size_t size_bytes() const;

 private:
  struct Kept {
    std::uint64_t tenant;
    std::string id;
    std::string report;

    // The id stands in the table of places, too.
    std::size_t size_bytes() const { return 256 + 2 * id.capacity() + report.capacity(); }
  };

  void compare_as_requested(const std::string& id, const PromptOrigin& origin,
                            std::span<const TokenId> prompt, OpenPrompt& open);
  void keep(std::uint64_t tenant, const CacheReport& report);

  const Tokenizer& tokenizer_;
  ServerMetrics& metrics_;
  const std::vector<std::string> tier_names_;
  const CacheLogLimits limits_;
  Ledger ledger_;
  mutable std::mutex mutex_;  // guards what follows
  std::deque<Kept> reports_;  // oldest first
  std::size_t report_bytes_ = 0;
  std::uint64_t num_dropped_ = 0;
  std::unordered_map<std::string, std::uint64_t> places_;  // id -> index since the start
};

}  // namespace larder
