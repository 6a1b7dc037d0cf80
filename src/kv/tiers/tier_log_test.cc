// A log whose reader stands still: the tiers' threads wait for it, and the engine's does not.
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kv/tiers/disk_faults_test_support.h"
#include "kv/tiers/remote_test_server.h"
#include "kv/tiers/remote_tier.h"

namespace larder {
namespace {

class StuckSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void stick() { is_stuck_ = true; }
  void let_go() {
    is_stuck_ = false;
    is_stuck_.notify_all();
  }
  bool is_waited_for() const { return is_waited_for_; }
  std::string text() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    text_.append(message.payload.data(), message.payload.size());
    if (is_stuck_) is_waited_for_ = true;
    is_stuck_.wait(true);
  }
  void flush_() override {}

  std::atomic<bool> is_stuck_ = false;
  std::atomic<bool> is_waited_for_ = false;
  std::string text_;
};

class TierLogTest : public DiskFaultsTest {
 protected:
  TierLogTest() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("stuck", log_));
    spdlog::set_level(spdlog::level::info);
  }
  ~TierLogTest() override { spdlog::set_default_logger(before_); }

  // What the engine's thread asks a tier at every prompt.
  void expect_an_answer(const KvTier& tier, TierPresence right) {
    wait_until([&] { return log_->is_waited_for(); });
    auto presence =
        std::async(std::launch::async, [&] { return tier.presence(test_block(1, 0)); });
    EXPECT_EQ(presence.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    log_->let_go();
    EXPECT_EQ(presence.get(), right);
  }

  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  const std::shared_ptr<StuckSink> log_ = std::make_shared<StuckSink>();
};

TEST_F(TierLogTest, OfWritesThatFail) {
  auto tier = open(kNeverMs);
  put_all(*tier, test_chain(1, 1), kBlockBytes);
  log_->stick();
  faults_.write_error = EIO;
  ASSERT_TRUE(put_block(*tier, test_block(2, 0), kBlockBytes));
  expect_an_answer(*tier, TierPresence::kPresent);
}

TEST_F(TierLogTest, OfADiskThatIsFull) {
  auto tier = open(kNeverMs);
  put_all(*tier, test_chain(1, 1), kBlockBytes);
  log_->stick();
  faults_.bytes_until_full = 0;
  ASSERT_TRUE(put_block(*tier, test_block(2, 0), kBlockBytes));
  expect_an_answer(*tier, TierPresence::kPresent);
}

TEST_F(TierLogTest, OfReadsThatFail) {
  const auto blocks = test_chain(1, 10);
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  log_->stick();
  faults_.read_error = EIO;
  auto num_found =
      std::async(std::launch::async, [&] { return count_right(*tier, blocks, kBlockBytes); });
  expect_an_answer(*tier, TierPresence::kAbsent);
  EXPECT_EQ(num_found.get(), 0);
}

TEST_F(TierLogTest, OfAServerThatIsThereAgain) {
  std::atomic<bool> is_there = false;
  const ScriptedServer server([&](const std::vector<std::string>&) -> ScriptedServer::Action {
    if (!is_there) return {.bytes = {}, .then_close = true};
    return {.bytes = "+PONG\r\n"};
  });
  RemoteTierConfig config;
  config.url = server.url();
  config.first_retry_ms = config.max_retry_ms = 1;
  RemoteTier tier(config, test_format(kBlockBytes));
  log_->stick();
  is_there = true;
  expect_an_answer(tier, TierPresence::kUnknown);
}

TEST_F(TierLogTest, AServersTextStaysInItsLine) {
  for (const std::string said : {"PING", "SET", "GETRANGE"}) {
    const ScriptedServer server([&](const std::vector<std::string>& command) -> ScriptedServer::Action {
      if (command.front() == said) return {.bytes = "-ERR \x1b[2J" + said + " is\n[forged]\r\n"};
      return {.bytes = command.front() == "PING" ? "+PONG\r\n" : "+OK\r\n"};
    });
    RemoteTierConfig config;
    config.url = server.url();
    RemoteTier tier(config, test_format(kBlockBytes));
    if (said == "SET") {
      ASSERT_TRUE(put_block(tier, test_block(2, 0), kBlockBytes));
    } else if (said == "GETRANGE") {
      EXPECT_EQ(count_right(tier, test_chain(1, 1), kBlockBytes), 0);
    }
    wait_until([&] { return log_->text().find(said + " is?[forged]") != std::string::npos; });
    EXPECT_EQ(log_->text().find('\x1b'), std::string::npos);
  }
}

}  // namespace
}  // namespace larder
