#include "base/patient_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <utility>

namespace larder {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PatientLogTest : public ::testing::Test {
 protected:
  PatientLogTest() {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    file_ = ::fdopen(ends_[1], "w");
    logger_ = std::make_unique<spdlog::logger>("", std::make_shared<PatientLog>(file_));
  }
  ~PatientLogTest() override {
    logger_.reset();
    std::fclose(file_);
    if (ends_[0] >= 0) ::close(ends_[0]);
  }

  void set_blocking(int end, bool blocks) { EXPECT_EQ(::fcntl(ends_[end], F_SETFL, blocks ? 0 : O_NONBLOCK), 0); }

  void fill() {
    set_blocking(1, false);
    const std::string page(4096, '-');
    while (::write(ends_[1], page.data(), page.size()) > 0) {
    }
    set_blocking(1, true);
  }

  // All that is there.
  std::string read() {
    set_blocking(0, false);
    std::string text;
    std::array<char, 4096> part;
    for (ssize_t num; (num = ::read(ends_[0], part.data(), part.size())) > 0;) text.append(part.data(), static_cast<std::size_t>(num));
    return text;
  }

  std::array<int, 2> ends_{-1, -1};
  std::FILE* file_ = nullptr;
  std::unique_ptr<spdlog::logger> logger_;
};

TEST_F(PatientLogTest, WhoReadsLosesNothing) {
  logger_->info("one");
  logger_->warn("two");
  const std::string text = read();
  EXPECT_THAT(text, HasSubstr("one\n"));
  EXPECT_THAT(text, HasSubstr("two\n"));
  EXPECT_THAT(text, Not(HasSubstr("lost")));
}

TEST_F(PatientLogTest, WhereNobodyReadsLinesAreLostAndCounted) {
  fill();
  for (int i = 0; i < 3; ++i) logger_->info("unread");
  EXPECT_THAT(read(), Not(HasSubstr("unread")));
  logger_->info("read");
  logger_->info("again");
  const std::string text = read();
  EXPECT_THAT(text, HasSubstr("[warning] 3 lines of this log were lost: nobody read it\n"));
  EXPECT_LT(text.find("lost"), text.find("read\n"));
  EXPECT_THAT(text, HasSubstr("again\n"));
  EXPECT_EQ(text.find("lost"), text.rfind("lost"));
}

TEST_F(PatientLogTest, AReaderThatHasGoneIsNoReasonToWait) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  fill();
  ::close(std::exchange(ends_[0], -1));
  logger_->info("unread");
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace larder
