// Systems where io_uring is there but of no use: rules that forbid a system call, an old kernel.
#include "kv/tiers/block_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace larder {
namespace {

// From now on, on this thread only. false: this system has no such rules.
bool forbid(int system_call, int error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(system_call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(rules), .filter = rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool has_uring() { return make_block_io(BlockIoKind::kAuto, 4)->name() == std::string("io_uring"); }

class BlockIoTest : public testing::Test {
 protected:
  BlockIoTest() : file_(std::tmpfile()) {
    CHECK(file_ != nullptr);
    const std::string text = "0123456789";
    CHECK(::pwrite(::fileno(file_), text.data(), text.size(), 0) == 10);
  }
  ~BlockIoTest() override { std::fclose(file_); }

  // Each of the ten bytes by itself.
  std::vector<std::int64_t> read_all(BlockIo& io) {
    bytes_.assign(10, std::byte{0});
    std::vector<IoRequest> requests;
    for (int i = 0; i < 10; ++i)
      requests.push_back({.fd = ::fileno(file_),
                          .offset_bytes = i,
                          .data = &bytes_[static_cast<std::size_t>(i)],
                          .size_bytes = 1});
    io.transfer(IoDirection::kRead, requests);
    std::vector<std::int64_t> results;
    for (const IoRequest& request : requests) results.push_back(request.result);
    return results;
  }
  void expect_right() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i) EXPECT_EQ(bytes_[i], std::byte('0' + i));
  }

 private:
  std::FILE* file_;
  std::vector<std::byte> bytes_;
};

TEST_F(BlockIoTest, TakesThreadsWhereItsCallsAreForbidden) {
  struct Rule {
    int system_call;
    int error;
    const char* text;
  };
  const bool had_uring = has_uring();
  // Before Linux 5.6 the ring could not be asked what it knows: EINVAL.
  for (const Rule& rule : {Rule{SYS_io_uring_setup, EPERM, "not permitted"},
                           Rule{SYS_io_uring_register, EINVAL, "5.6"},
                           Rule{SYS_io_uring_enter, EPERM, "not permitted"},
                           Rule{SYS_io_uring_enter, ENOSYS, "not implemented"}}) {
    bool is_forbidden = false;
    std::thread([&] {
      is_forbidden = forbid(rule.system_call, rule.error);
      if (!is_forbidden) return;
      const auto io = make_block_io(BlockIoKind::kAuto, 4);
      EXPECT_STREQ(io->name(), "threads");
      EXPECT_THAT(read_all(*io), testing::Each(1));
      expect_right();
      try {
        make_block_io(BlockIoKind::kUring, 4);
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
        EXPECT_THAT(error.what(), testing::StartsWith("io_uring: "));
        if (had_uring) {
          EXPECT_THAT(error.what(), testing::HasSubstr(rule.text));
        }
      }
    }).join();
    if (!is_forbidden) GTEST_SKIP() << "no seccomp here";
  }
  if (!had_uring) GTEST_SKIP() << "no io_uring here: threads are taken without a rule, too";
}

TEST_F(BlockIoTest, EndsWhereACallFailsForGood) {
  if (!has_uring()) GTEST_SKIP() << "no io_uring here";
  bool is_forbidden = false;
  std::thread([&] {
    const auto io = make_block_io(BlockIoKind::kUring, 4);
    EXPECT_THAT(read_all(*io), testing::Each(1));
    expect_right();
    is_forbidden = forbid(SYS_io_uring_enter, EPERM);
    if (!is_forbidden) return;
    EXPECT_THAT(read_all(*io), testing::Each(-EPERM));
    EXPECT_THAT(read_all(*io), testing::Each(-EPERM));
  }).join();
  if (!is_forbidden) GTEST_SKIP() << "no seccomp here";
}

}  // namespace
}  // namespace larder
