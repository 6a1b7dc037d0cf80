#include "base/patient_log.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <utility>

namespace larder {
namespace {

// Also where its reader has gone, which writing tells. A signal ends the wait: there is no room then, as far as is known.
bool has_room(std::FILE* file, int timeout_ms) {
  pollfd waited{.fd = ::fileno(file), .events = POLLOUT, .revents = 0};
  return ::poll(&waited, 1, timeout_ms) > 0;
}

}  // namespace

PatientLog::PatientLog(std::FILE* file) : ansicolor_sink(file, spdlog::color_mode::automatic), file_(file) {}

void PatientLog::log(const spdlog::details::log_msg& message) {
  const std::lock_guard lock(mutex_);
  if (!has_room(file_, num_lost_ > 0 ? 0 : kPatienceMs)) {
    ++num_lost_;
    return;
  }
  if (num_lost_ > 0) {
    const std::string text = fmt::format("{} lines of this log were lost: nobody read it", std::exchange(num_lost_, 0));
    ansicolor_sink::log(spdlog::details::log_msg(message.logger_name, spdlog::level::warn, text));
  }
  ansicolor_sink::log(message);
}

void log_to(std::FILE* file) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::make_shared<PatientLog>(file)));
}

}  // namespace larder
