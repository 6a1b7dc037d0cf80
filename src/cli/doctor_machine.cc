// What the machine and the limits around the process offer.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "cli/doctor.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

namespace larder {
namespace {

constexpr std::int64_t kLittleMemoryBytes = std::int64_t{1} << 30;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void check_isa(Findings& findings) {
  try {
    const KernelTable& kernels = select_kernels();
    const char* forced = std::getenv("LARDER_ISA");
    const KernelTable& best = best_kernels();
    if (&best != &kernels)
      findings.warn("instructions",
                    fmt::format("LARDER_ISA={} chooses {}, the machine has {}",
                                forced ? forced : "", kernels.name, best.name),
                    "unset LARDER_ISA");
    else if (kernels.isa == Isa::kGeneric)
      findings.warn("instructions", "no AVX2: the generic kernels are many times slower",
                    "use an x86-64 machine with AVX2, or let the hypervisor pass it on");
    else
      findings.ok("instructions", fmt::format("{} kernels", kernels.name));
  } catch (const Error& error) {
    findings.fail("instructions", error.what(), "unset LARDER_ISA");
  }
}

// Cores' worth of time that a container's limit leaves; nullopt = no limit.
std::optional<double> cpu_quota() {
  std::ifstream both("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(both >> quota >> period)) {
    quota = first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    period = std::atof(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str());
  }
  const double value = std::atof(quota.c_str());
  if (value <= 0 || period <= 0) return std::nullopt;
  return value / period;
}

void check_cores(const RuntimeOptions& options, Findings& findings) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = num_threads_of(options);
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : cores;
  const std::optional<double> quota = cpu_quota();
  const std::string text =
      fmt::format("{} cores{}, {} threads", allowed,
                  quota ? fmt::format(", a limit of {:.1f}", *quota) : "", threads);
  const int usable = std::min(allowed, quota ? std::max(1, static_cast<int>(*quota)) : allowed);
  if (threads > usable)
    findings.warn("cores", text + ": threads wait for one another",
                  fmt::format("--threads {}", usable));
  else
    findings.ok("cores", text);

  const double load = std::atof(first_line("/proc/loadavg").c_str());
  if (load > 0.5 * cores)
    findings.warn("load",
                  fmt::format("load {:.1f} on {} cores: other processes compute, too", load, cores),
                  "stop them, or give Larder fewer --threads");
  else
    findings.ok("load", fmt::format("load {:.1f}", load));
}

void check_memory(Findings& findings) {
  const std::int64_t available_bytes = available_memory_bytes();
  const std::int64_t limit_bytes = memory_limit_bytes();
  std::string text = format_bytes(available_bytes) + " available";
  if (limit_bytes > 0)
    text += fmt::format(", a container's or a group's limit of {}", format_bytes(limit_bytes));
  if (available_bytes < kLittleMemoryBytes)
    findings.warn("memory", text, "free some, or raise that limit");
  else
    findings.ok("memory", text);

  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    findings.warn("address space",
                  fmt::format("limited to {}: files are mapped whole",
                              format_bytes(static_cast<std::int64_t>(limit.rlim_cur))),
                  "ulimit -v unlimited");
}

void check_huge_pages(Findings& findings) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  const std::string modes = first_line(path);
  if (modes.empty())
    findings.warn("huge pages", "the kernel has none: reading weights is some percent slower",
                  "a kernel with CONFIG_TRANSPARENT_HUGEPAGE");
  else if (modes.find("[never]") != std::string::npos)
    findings.warn("huge pages", "off: reading weights is some percent slower",
                  "echo madvise > " + path);
  else
    findings.ok("huge pages", modes.find("[always]") != std::string::npos ? "always" : "madvise");
}

void check_files(Findings& findings) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  // The server raises its own limit to the hard one; a connection takes one.
  constexpr rlim_t kFew = 4096;
  const std::string text = fmt::format("{} at most", limit.rlim_max);
  if (limit.rlim_max < kFew)
    findings.warn("open files", text + ": so many connections less some", "ulimit -Hn 65536");
  else
    findings.ok("open files", limit.rlim_max == RLIM_INFINITY ? "no limit" : text);
}

}  // namespace

void check_machine(const RuntimeOptions& options, Findings& findings) {
  check_isa(findings);
  check_cores(options, findings);
  check_memory(findings);
  check_huge_pages(findings);
  check_files(findings);
}

}  // namespace larder
