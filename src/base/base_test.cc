#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/histogram.h"
#include "base/mapped_file.h"
#include "base/start_thread.h"
#include "base/thread_pool.h"
#include "base/thread_test_support.h"

namespace larder {
namespace {

// Touches so much of the stack.
[[gnu::noinline]] int use_stack(std::size_t num_bytes) {
  constexpr std::size_t kPage = 4096;
  volatile char page[kPage];
  page[0] = 1;
  return num_bytes <= kPage ? page[0] : use_stack(num_bytes - kPage) * page[0];
}

// As the C library has it where the limit was so low at the process's start.
int run_with_short_stacks() {
  constexpr std::size_t kShort = 512 << 10;
  const rlimit limit = {kShort, kShort};
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  if (::setrlimit(RLIMIT_STACK, &limit) != 0 || ::pthread_attr_setstacksize(&attributes, kShort) != 0 ||
      ::pthread_setattr_default_np(&attributes) != 0)
    return 1;
  constexpr std::size_t kUsed = 3 << 20;
  int result = 0;
  (void)run_with_stacks(4 << 20, [&] {
    result = use_stack(kUsed);
    std::thread([&] { result += use_stack(kUsed); }).join();
    return 0;
  });
  try {
    (void)run_with_stacks(4 << 20, []() -> int { throw Error(ErrorKind::kNotFound, "as before"); });
  } catch (const Error&) {
    ++result;
  }
  return result;
}

TEST(RunWithStacks, GivesWhatTheLimitDoesNot) {
  EXPECT_EXIT(std::_Exit(40 + run_with_short_stacks()), testing::ExitedWithCode(43), "");
  EXPECT_EQ(run_with_stacks(1, [] { return 5; }), 5);
}

TEST(ThreadPool, RunsEveryTaskOnceHoweverOften) {
  for (int num_threads : {1, 2, 4}) {
    ThreadPool pool(num_threads);
    for (int round = 0; round < 2000; ++round) {
      const int num_tasks = round % 9;
      std::array<std::atomic<int>, 9> counts{};
      pool.parallel_for(num_tasks, [&](int task, int thread) {
        ASSERT_LT(thread, num_threads);
        counts[static_cast<std::size_t>(task)].fetch_add(1);
      });
      for (int task = 0; task < 9; ++task)
        ASSERT_EQ(counts[static_cast<std::size_t>(task)].load(), task < num_tasks ? 1 : 0);
    }
  }
}

TEST(ThreadPool, RunsEveryTaskOnceWhoeverItIsNear) {
  for (int num_threads : {1, 2, 3, 4}) {
    ThreadPool pool(num_threads);
    for (int round = 0; round < 2000; ++round) {
      const int num_tasks = round % 19;
      std::array<std::atomic<int>, 19> counts{};
      pool.parallel_for_near(num_tasks, [&](int task, int thread) {
        ASSERT_LT(thread, num_threads);
        counts[static_cast<std::size_t>(task)].fetch_add(1);
      });
      for (int task = 0; task < 19; ++task)
        ASSERT_EQ(counts[static_cast<std::size_t>(task)].load(), task < num_tasks ? 1 : 0);
    }
  }
}

// One thread is late: whoever is there does its part too.
TEST(ThreadPool, HelpsWithOthersParts) {
  ThreadPool pool(2);
  std::array<std::atomic<bool>, 8> done{};
  const auto is_done = [](const std::atomic<bool>& one) { return one.load(); };
  pool.parallel_for_near(8, [&](int task, int) {
    if (task == 0) {
      while (!std::all_of(done.begin() + 1, done.end(), is_done)) std::this_thread::yield();
    }
    done[static_cast<std::size_t>(task)].store(true);
  });
  EXPECT_TRUE(std::ranges::all_of(done, is_done));
}

TEST(ThreadPool, RunsEveryTaskWhateverThreadsFetchMeanwhile) {
  const std::vector<std::byte> bytes(100'000);
  for (int num_threads : {1, 2, 4}) {
    ThreadPool pool(num_threads);
    for (int round = 0; round < 2000; ++round) {
      for (int thread = 0; thread < num_threads; ++thread)
        pool.fetch_while_waiting(thread, bytes.data() + round, round % 3 * 30'000);
      std::array<int, 9> counts{};
      pool.parallel_for(round % 9, [&](int task, int) { ++counts[static_cast<std::size_t>(task)]; });
      for (int task = 0; task < 9; ++task)
        ASSERT_EQ(counts[static_cast<std::size_t>(task)], task < round % 9 ? 1 : 0);
    }
  }
}

TEST(ThreadPoolDeathTest, SaysWhichThreadTheSystemRefuses) {
  EXPECT_EXIT(run_with_threads(3, [] { const ThreadPool pool(1000); }),
              ::testing::ExitedWithCode(3),
              "cannot start thread [0-9]+ of 1000: .*; give a smaller --threads");
}

TEST(AlignedBuffer, IsZeroedAndRefusesWhatCannotBe) {
  AlignedBuffer buffer(std::size_t{5} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0u);
  EXPECT_EQ(buffer.data()[(std::size_t{5} << 20) - 1], std::byte{0});
  EXPECT_THROW(AlignedBuffer(std::size_t{1} << 60), Error);
}

// Address space for three stacks holds the buffer, and no stack beside it.
TEST(AlignedBufferDeathTest, TakesItsPagesAloneWhereTheSystemRefusesThreads) {
  EXPECT_EXIT(run_with_threads(3, [] { const AlignedBuffer buffer(std::size_t{700} << 20, true); }),
              ::testing::ExitedWithCode(0), "");
}

// Also where several threads share the work.
TEST(AlignedBuffer, HasItsPagesWhereTheyWereTaken) {
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kSize = (std::size_t{600} << 20) + 1;
  const auto num_resident = [](std::byte* data) {
    std::vector<unsigned char> pages(kSize / kPage + 1);
    EXPECT_EQ(::mincore(data, kSize, pages.data()), 0);
    return static_cast<std::size_t>(
        std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
  };
  AlignedBuffer touched(kSize, true);
  EXPECT_EQ(num_resident(touched.data()), kSize / kPage + 1);
  AlignedBuffer reserved(kSize);
  EXPECT_EQ(num_resident(reserved.data()), 0u);
}

TEST(MappedFile, NamesThePathAndTheReason) {
  try {
    MappedFile file("/nowhere/model.gguf");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_NE(std::string_view(error.what()).find("/nowhere/model.gguf"), std::string_view::npos);
  }
  EXPECT_THROW(MappedFile("/"), Error);
  EXPECT_FALSE(MappedFile(LARDER_SOURCE_DIR "/README.md").bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoRegularFileAtOnce) {
  const std::string pipe = ::testing::TempDir() + "larder-pipe-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/null"), std::string("/")}) {
    try {
      MappedFile file(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), path + ": is not a regular file");
    }
  }
  std::filesystem::remove(pipe);
}

TEST(Hash, Sha256OfAbc) {
  const std::array<std::byte, 3> abc{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  EXPECT_EQ(to_hex(sha256(abc)),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Histogram, PutsAValueAtItsUpperBound) {
  const std::vector<double> bounds = {1, 2};
  Histogram histogram(bounds);
  for (double value : {0.5, 1.0, 1.5, 9.0}) histogram.observe(value);
  EXPECT_EQ(histogram.counts(), (std::vector<std::uint64_t>{2, 1, 1}));
  EXPECT_DOUBLE_EQ(histogram.sum(), 12);
}

TEST(CheckDeathTest, PrintsTheValues) {
  EXPECT_DEATH(CHECK(1 + 1 == 3, 42, "blocks"), "1 \\+ 1 == 3 42 blocks");
}

}  // namespace
}  // namespace larder
