// What `larder doctor` looks at. Each check adds its findings: one line for one thing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/runtime.h"
#include "server/api/server_config.h"

namespace larder {

enum class Verdict { kOk, kWarn, kFail };

struct Finding {
  std::string what;  // "memory", "model", ...
  Verdict verdict = Verdict::kOk;
  std::string text;  // what was found
  std::string fix;   // what to do about it; "" when OK
};

class Findings {
 public:
  void ok(std::string what, std::string text) {
    list_.push_back({std::move(what), Verdict::kOk, std::move(text), ""});
  }
  void warn(std::string what, std::string text, std::string fix) {
    list_.push_back({std::move(what), Verdict::kWarn, std::move(text), std::move(fix)});
  }
  void fail(std::string what, std::string text, std::string fix) {
    list_.push_back({std::move(what), Verdict::kFail, std::move(text), std::move(fix)});
  }
  // What an error says; its own fix if it tells one, behind "; ".
  void fail(std::string what, const Error& error, std::string otherwise) {
    const std::string text = error.what();
    const auto end = text.find("; ");
    fail(std::move(what), text.substr(0, end),
         end == text.npos ? std::move(otherwise) : text.substr(end + 2));
  }
  const std::vector<Finding>& list() const { return list_; }

 private:
  std::vector<Finding> list_;
};

// Instruction sets, cores, memory, limits of a container and of the shell, huge pages.
void check_machine(const RuntimeOptions& options, Findings& findings);
// The device, the file, its tensors, tokenizer and template, and whether it fits. Fetches nothing.
// Returns the bytes of a KV block; nullopt where they cannot be known.
std::optional<std::int64_t> check_model(const RuntimeOptions& options, Findings& findings);
// Whether the server could listen there, and would. The file's keys come to those of the config.
void check_port(ServerConfig server, const std::string& api_key_file, Findings& findings);
// Those that the options name. The disk is written to, for a moment, and left as it was.
void check_disk_tier(const RuntimeOptions& options, std::optional<std::int64_t> block_size_bytes,
                     Findings& findings);
void check_remote_tier(const RuntimeOptions& options, Findings& findings);

}  // namespace larder
