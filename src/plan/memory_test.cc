#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "kv/tiers/tier_test_support.h"
#include "plan/plan.h"

namespace larder {
namespace {

// A system of its own: 100,000 KiB are available.
class MemoryTest : public testing::Test {
 protected:
  MemoryTest() { write("proc/meminfo", "MemTotal: 200000 kB\nMemAvailable: 100000 kB\n"); }

  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_.path() + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void remove(const std::string& name) const { std::filesystem::remove(folder_.path() + "/" + name); }
  MemoryFolders folders() const { return {folder_.path() + "/proc", folder_.path() + "/cgroup"}; }
  void stand_in(const std::string& groups) const { write("proc/self/cgroup", groups); }
  // Of version 2.
  void limit(const std::string& group, const std::string& limit, int used, int inactive) const {
    write("cgroup" + group + "/memory.max", limit + "\n");
    write("cgroup" + group + "/memory.current", std::to_string(used) + "\n");
    write("cgroup" + group + "/memory.stat",
          "anon 12\ninactive_file " + std::to_string(inactive) + "\n");
  }
  void limit_version_1(const std::string& group, const std::string& limit, int used,
                       int inactive) const {
    write("cgroup/memory" + group + "/memory.limit_in_bytes", limit + "\n");
    write("cgroup/memory" + group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    write("cgroup/memory" + group + "/memory.stat",
          "inactive_file 1\ntotal_inactive_file " + std::to_string(inactive) + "\n");
  }
  void expect(std::int64_t available_bytes, std::int64_t limit_bytes) const {
    EXPECT_EQ(available_memory_bytes(folders()), available_bytes);
    EXPECT_EQ(memory_limit_bytes(folders()), limit_bytes);
  }
  void expect_bound(const std::string& bound) const { EXPECT_EQ(memory_bound(folders()), bound); }

 private:
  TempDir folder_;
};

constexpr std::int64_t kAvailableBytes = 102'400'000;

TEST_F(MemoryTest, WithoutLimitsItIsTheMachines) {
  expect(kAvailableBytes, 0);
  stand_in("0::/user.slice/job\n");
  limit("", "max", 5, 0);
  limit("/user.slice/job", "max", 5, 0);
  expect(kAvailableBytes, 0);
  expect_bound("");
}

// As under systemd's ProcSubset=pid: nothing at all would be available, and no server start.
TEST_F(MemoryTest, WithoutMeminfoItIsWhatIsFree) {
  remove("proc/meminfo");
  const std::int64_t free_bytes = available_memory_bytes(folders());
  struct sysinfo info {};
  ASSERT_EQ(::sysinfo(&info), 0);
  EXPECT_GT(free_bytes, 0);
  EXPECT_LT(free_bytes, static_cast<std::int64_t>(info.totalram) * info.mem_unit);
  stand_in("0::/service\n");
  limit("/service", "4096", 1024, 0);
  expect(3072, 4096);
}

// `ulimit -v`, of which some is mapped already.
TEST_F(MemoryTest, TheAddressSpacesLimitCounts) {
  constexpr rlim_t kLimitBytes = rlim_t{1} << 50;  // what this process itself maps stays far below
  constexpr std::int64_t kLeftBytes = 50 << 20;
  const std::int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  write("proc/self/statm", std::to_string((static_cast<std::int64_t>(kLimitBytes) - kLeftBytes) / page_bytes) + " 10 1 1 0 1 0\n");
  expect(kAvailableBytes, 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit limited{kLimitBytes, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  expect(kLeftBytes, 0);
  expect_bound("`ulimit -v`");
  setrlimit(RLIMIT_AS, &before);
}

// A container whose own group is the root, with or without a path from outside.
TEST_F(MemoryTest, TheRootsLimitCounts) {
  limit("", "1000000", 300'000, 100'000);
  for (const char* path : {"/", "/docker/abc", "/../other", "/.."}) {
    stand_in(std::string("0::") + path + "\n");
    expect(800'000, 1'000'000);
  }
}

// systemd-run -p MemoryMax=, a Slurm job: nothing is said at the root.
TEST_F(MemoryTest, TheGroupsOwnLimitCounts) {
  stand_in("0::/user.slice/run-1.scope\n");
  limit("/user.slice/run-1.scope", "1000000", 300'000, 0);
  expect(700'000, 1'000'000);
  expect_bound("the control group's limit");
}

TEST_F(MemoryTest, OfAllAboveTheTightestCounts) {
  stand_in("0::/a/b/c\n");
  limit("/a/b/c", "2000000", 100'000, 0);
  limit("/a/b", "max", 1'500'000, 0);
  limit("/a", "3000000", 2'900'000, 50'000);
  limit("/a/b/other", "10", 0, 0);
  expect(150'000, 3'000'000);
  limit("/a", "3000000", 4'000'000, 0);
  expect(0, 3'000'000);
}

TEST_F(MemoryTest, Version1) {
  const std::string none = "9223372036854771712";
  stand_in("9:name=systemd:/x\n4:cpu,memory:/slurm/job:1\n3:cpuset:/\n0::/y\n");
  limit_version_1("", none, 5'000'000, 0);
  expect(kAvailableBytes, 0);
  limit_version_1("/slurm/job:1", "1000000", 300'000, 100'000);
  expect(800'000, 1'000'000);
  limit_version_1("", "900000", 300'000, 0);
  expect(600'000, 900'000);
  // No controller of that name.
  stand_in("4:memory2,cpu:/slurm/job:1\n");
  limit_version_1("", none, 5'000'000, 0);
  expect(kAvailableBytes, 0);
}

TEST_F(MemoryTest, LinesThatAreNoneAreLeftOut) {
  limit("", "1000000", 0, 0);
  for (const char* text : {"", "x", "::", "0:", "0:memory", "4:memory", "0::", "0::x", "\n\n"}) {
    stand_in(text);
    expect(1'000'000, 1'000'000);
  }
}

}  // namespace
}  // namespace larder
