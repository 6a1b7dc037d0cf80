#include "base/spare_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <thread>
#include <utility>

#include "base/heap_test_support.h"

namespace larder {
namespace {

// In the child of a death test: no condition is of GoogleTest's, which wants memory.
void demand(bool is_so, const char* what) {
  if (is_so) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::_Exit(1);
}

// What is allocated, as a list.
class Pile {
 public:
  // false: operator new has thrown.
  bool grow(std::size_t size) {
    try {
      add(::operator new(size));
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  std::size_t grow_to_the_end(std::size_t size) {
    std::size_t count = 0;
    while (grow(size)) ++count;
    return count;
  }
  // All that malloc() has for this thread.
  void take_all() {
    for (std::size_t size = std::size_t{16} << 20; size >= 16; size /= 2)
      while (void* const bytes = std::malloc(size)) add(bytes);
  }
  void clear() {
    while (last_ != nullptr) ::operator delete(std::exchange(last_, *static_cast<void**>(last_)));
  }

 private:
  void add(void* bytes) { *static_cast<void**>(bytes) = std::exchange(last_, bytes); }

  void* last_ = nullptr;
};

constexpr std::size_t kSmall = 100;
constexpr std::size_t kMany = 12'000;
constexpr std::size_t kReadBytes = 4096;
constexpr std::size_t kLarge = std::size_t{1} << 30;

// No more address space than this from now on.
void forbid_beyond(std::size_t more_bytes) {
  std::size_t num_pages = 0;
  std::ifstream("/proc/self/statm") >> num_pages;
  const rlim_t limit = num_pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + more_bytes;
  const rlimit address_space{limit, limit};
  ::setrlimit(RLIMIT_AS, &address_space);
}

// Ends the process: 0 if all that it demands is so, by SIGALRM if it waits for ever.
template <class Body>
[[noreturn]] void run_without_memory(Body body, std::size_t more_bytes = std::size_t{8} << 20) {
  ::alarm(60);
  forbid_beyond(more_bytes);
  body();
  std::_Exit(0);
}

class SpareMemoryDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_heap_known()) GTEST_SKIP() << "another allocator, whose operator new it is";
  }
};

void find_spare_behind_what_is_large() {
  Pile taken, kept;
  taken.take_all();
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 100; ++i) demand(!kept.grow(kLarge) && !kept.grow(kReadBytes), "what is large fails");
    for (std::size_t i = 0; i < kMany; ++i) demand(kept.grow(kSmall), "many small ones succeed");
    const std::size_t num_more = kept.grow_to_the_end(kSmall);
    demand((kMany + num_more) * kSmall < kSpareBytes, "once it is spent, too, they throw");
    kept.clear();
    demand(spare_stats().used_bytes == 0, "it is there again");
  }
  demand(spare_stats().num_taken >= 20 * kMany, "it is counted");
  taken.clear();
  const std::uint64_t num_taken = spare_stats().num_taken;
  demand(kept.grow(kLarge / 1024) && kept.grow(kSmall), "there is memory again");
  demand(spare_stats().num_taken == num_taken, "which comes first");
}

TEST_F(SpareMemoryDeathTest, WhatIsSmallFindsMemoryBehindWhatIsLarge) {
  EXPECT_EXIT(run_without_memory(find_spare_behind_what_is_large), ::testing::ExitedWithCode(0), "");
}

// Of which the C library keeps what is free apart.
TEST_F(SpareMemoryDeathTest, IsThereForAnyThread) {
  const auto on_a_thread = [] { std::thread(find_spare_behind_what_is_large).join(); };
  EXPECT_EXIT(run_without_memory(on_a_thread, std::size_t{300} << 20), ::testing::ExitedWithCode(0), "");
}

TEST(SpareMemory, HasAPlaceForEachAndTakesOnlyItsOwnBack) {
  int other = 0;
  EXPECT_FALSE(give_spare(&other));
  EXPECT_FALSE(give_spare(nullptr));
  EXPECT_EQ(take_spare(4096), nullptr);
  void* const small = take_spare(1);
  void* const large = take_spare(2048);
  ASSERT_TRUE(small != nullptr && large != nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % 64, 0u);
  EXPECT_EQ(spare_stats().used_bytes, 128u + 2048u);
  EXPECT_TRUE(give_spare(small) && give_spare(large));
  EXPECT_EQ(take_spare(100), small);
  EXPECT_TRUE(give_spare(small));
  EXPECT_EQ(spare_stats().used_bytes, 0u);
}

}  // namespace
}  // namespace larder
