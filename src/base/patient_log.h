// A log that loses lines rather than let the server wait for its reader.
#pragma once

#include <spdlog/sinks/ansicolor_sink.h>

#include <cstdint>
#include <cstdio>
#include <mutex>

namespace larder {

// Of a pipe that is full, as of a supervisor that hangs, or a terminal that is stopped: what does not fit within kPatience
// is lost, at once from then on, until there is room again; a line tells how many were. A file, a journal and whoever reads
// lose nothing. Lines up to PIPE_BUF (4 KiB) never block where nobody else writes to the same pipe. Thread: any.
class PatientLog final : public spdlog::sinks::ansicolor_sink<spdlog::details::console_mutex> {
 public:
  static constexpr int kPatienceMs = 100;

  // file: open for as long as the log is.
  explicit PatientLog(std::FILE* file);

  void log(const spdlog::details::log_msg& message) override;

 private:
  std::FILE* const file_;
  std::mutex mutex_;
  std::uint64_t num_lost_ = 0;  // since the last line
};

// The default log goes there, with spdlog's level and pattern.
void log_to(std::FILE* file);

}  // namespace larder
