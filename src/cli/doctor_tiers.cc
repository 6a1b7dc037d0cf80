// The port and the tiers, looked at as the server will use them.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cli/doctor.h"
#include "kv/tiers/block_io.h"
#include "kv/tiers/disk_segment.h"
#include "kv/tiers/remote_connection.h"
#include "kv/tiers/remote_request.h"
#include "kv/tiers/remote_host.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/remote_url.h"
#include "plan/plan.h"
#include "server/api/auth.h"
#include "server/api/server_config.h"
#include "server/http/endpoint.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kProbeBytes = std::int64_t{32} << 20;
constexpr double kSlowBytesPerSecond = 200e6;

// "" = free, else why not.
std::string bind_error(const asio::ip::tcp::endpoint& endpoint) {
  const int fd = ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::strerror(errno);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool failed =
      ::bind(fd, endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0 ||
      ::listen(fd, 1) != 0;
  const std::string text = failed ? std::strerror(errno) : "";
  ::close(fd);
  return text;
}

// Of the tier's blocks, in place already.
std::int64_t stored_bytes(const fs::path& folder) {
  std::int64_t own_bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".kv") {
      struct stat file{};
      if (::stat(entry.path().c_str(), &file) == 0) own_bytes += file.st_blocks * 512;
    }
  return own_bytes;
}

void check_room(const fs::path& folder, std::int64_t wanted_bytes, Findings& findings) {
  struct statvfs status{};
  if (::statvfs(folder.c_str(), &status) != 0) return;
  const auto free_bytes = static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
  const std::int64_t own_bytes = stored_bytes(folder);
  const std::string text = fmt::format("{} free, {} stored, limit {}", format_bytes(free_bytes),
                                       format_bytes(own_bytes), format_bytes(wanted_bytes));
  constexpr std::int64_t kLeastBytes = std::int64_t{64} << 20;  // a segment
  const std::int64_t room_bytes = (free_bytes + own_bytes) / 10 * 9;
  if (free_bytes + own_bytes < wanted_bytes)
    findings.warn("disk room", text,
                  room_bytes < kLeastBytes ? std::string("--kv-disk DIRECTORY: on a disk that has room")
                                           : fmt::format("--kv-disk-size {}, or another disk", option_bytes(room_bytes)));
  else
    findings.ok("disk room", text);
}

// Bytes a second of a file that is written, forgotten by the page cache and read; throws Error, kTooLarge
// where the disk is full.
struct DiskSpeed {
  double write = 0;
  double read = 0;
};

DiskSpeed measure_disk(const fs::path& folder) {
  const std::string path = (folder / fmt::format("doctor-{}.tmp", ::getpid())).string();  // of no name, once it is open
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const auto fail = [&] {
    throw Error(errno == ENOSPC || errno == EDQUOT ? ErrorKind::kTooLarge : ErrorKind::kUnavailable,
                fmt::format("{}: no file can be written there: {}", folder.string(), std::strerror(errno)));
  };
  if (fd < 0) fail();
  ::unlink(path.c_str());
  const std::unique_ptr<const int, void (*)(const int*)> owner(
      &fd, [](const int* open_fd) { ::close(*open_fd); });
  std::vector<char> bytes(std::size_t{1} << 20, 0x2E);
  const auto run = [&](auto&& transfer) {
    const std::int64_t begin = steady_now_ns();
    for (std::int64_t offset = 0; offset < kProbeBytes;
         offset += static_cast<std::int64_t>(bytes.size()))
      if (transfer(fd, bytes.data(), bytes.size(), offset) !=
          static_cast<ssize_t>(bytes.size()))
        fail();
    if (::fdatasync(fd) != 0) fail();
    return static_cast<double>(kProbeBytes) / (static_cast<double>(steady_now_ns() - begin) * 1e-9);
  };
  DiskSpeed speed;
  speed.write = run(::pwrite);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  speed.read = run(::pread);
  return speed;
}

void check_disk_io(const fs::path& folder, Findings& findings) {
  try {
    const DiskSpeed speed = measure_disk(folder);
    const std::string text = fmt::format("writes {:.0f} MB/s, reads {:.0f} MB/s",
                                         speed.write / 1e6, speed.read / 1e6);
    if (std::min(speed.read, speed.write) < kSlowBytesPerSecond)
      findings.warn("disk speed", text + ": blocks may be slower to load than to compute",
                    "a local SSD");
    else
      findings.ok("disk speed", text);
  } catch (const Error& error) {
    // New blocks take the place of those that are there.
    if (error.kind() == ErrorKind::kTooLarge && stored_bytes(folder) > 0)
      findings.warn("disk speed", "not measured: the disk has no room beside the blocks that are stored",
                    "free some, or another disk");
    else
      findings.fail("disk", error.what(), "a directory that this user may write to, with room");
  }
  try {
    findings.ok("disk reads", make_block_io(BlockIoKind::kUring, 8)->name());
  } catch (const Error& error) {
    findings.warn("disk reads", fmt::format("{}: threads read instead", error.what()),
                  "allow io_uring: sysctl kernel.io_uring_disabled=0, or the container's seccomp");
  }
}

// Nobody else holds the directory, as far as it has been used.
bool check_lock(const fs::path& folder, Findings& findings) {
  const int fd = ::open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return true;
  const bool is_free = fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  if (is_free) return true;
  if (reason == EWOULDBLOCK)
    findings.fail("disk", folder.string() + ": another process uses this directory",
                  "stop that process, or give each its own --kv-disk");
  else
    findings.fail("disk", fmt::format("{}/lock: {}", folder.string(), std::strerror(reason)),
                  "let this user write to it");
  return false;
}

// The number or word behind "name:" in Redis's INFO.
std::string info_field(const std::string& info, const std::string& name) {
  std::size_t begin = info.find("\n" + name + ":");
  if (begin == std::string::npos) return "";
  begin += name.size() + 2;
  return info.substr(begin, info.find_first_of("\r\n", begin) - begin);
}

void report_redis(const RemoteUrl& url, const std::string& info, std::int64_t round_trip_ns,
                  Findings& findings) {
  const std::string valkey = info_field(info, "valkey_version");
  const std::string version =
      valkey.empty() ? "Redis " + info_field(info, "redis_version") : "Valkey " + valkey;
  const bool is_of_cluster = info_field(info, "cluster_enabled") == "1";
  findings.ok("remote", fmt::format("{}: {}{}, answers in {:.2f} ms", url.display(), version,
                                    is_of_cluster ? ", one of a cluster, whose others are not looked at" : "",
                                    static_cast<double>(round_trip_ns) * 1e-6));
  const std::string policy = info_field(info, "maxmemory_policy");
  const std::int64_t max_bytes = std::atoll(info_field(info, "maxmemory").c_str());
  const std::string text =
      fmt::format("maxmemory {}, {}", max_bytes > 0 ? format_bytes(max_bytes) : "not set", policy);
  if (max_bytes == 0)
    findings.warn("remote memory", text + ": it grows until its machine has none left",
                  "redis-cli config set maxmemory 8gb, and maxmemory-policy allkeys-lru");
  else if (policy == "noeviction")
    findings.warn("remote memory", text + ": once full, no block is stored any more",
                  "redis-cli config set maxmemory-policy allkeys-lru");
  else
    findings.ok("remote memory", text);
}

}  // namespace

void check_port(ServerConfig server, const std::string& api_key_file, Findings& findings) {
  const std::string name = fmt::format("{}:{}", server.host, server.port);
  try {
    if (!api_key_file.empty()) read_api_keys(api_key_file, server.api_keys, server.api_key_groups);
    const std::string reason = bind_error(endpoint_of(server));
    if (reason.empty())
      findings.ok("port", name + " is free");
    else
      findings.fail("port", fmt::format("{}: {}", name, reason),
                    "--port N or --host ADDRESS, or stop what listens there");
  } catch (const Error& error) {
    findings.fail("port", error, "a file that this user may read");
  }
}

void check_disk_tier(const RuntimeOptions& options, std::optional<std::int64_t> block_size_bytes,
                     Findings& findings) {
  if (options.kv_disk.empty()) return findings.ok("disk", "no --kv-disk");
  std::int64_t wanted_bytes = 0;
  try {
    wanted_bytes = parse_bytes("--kv-disk-size", options.kv_disk_size);
  } catch (const Error& error) {
    return findings.fail("disk", error.what(), "--kv-disk-size 10GiB");
  }
  if (block_size_bytes && slots_within(wanted_bytes, *block_size_bytes) == 0)
    return findings.fail("disk",
                         fmt::format("--kv-disk-size: {} bytes do not hold one KV block of {} "
                                     "bytes and its header",
                                     wanted_bytes, *block_size_bytes),
                         "--kv-disk-size 10GiB");
  fs::path folder = options.kv_disk;
  std::error_code ignored;
  if (fs::exists(folder, ignored)) {
    if (!fs::is_directory(folder, ignored))
      return findings.fail("disk", folder.string() + " is no directory", "--kv-disk DIRECTORY");
    if (!check_lock(folder, findings)) return;
    findings.ok("disk", folder.string() + " is there and nobody uses it");
  } else {
    // The server makes it: its nearest parent is what has to let it.
    folder = fs::absolute(folder, ignored);
    while (!fs::exists(folder, ignored) && folder.has_parent_path() &&
           folder != folder.parent_path())
      folder = folder.parent_path();
    findings.ok("disk", options.kv_disk + " will be made");
  }
  check_room(folder, wanted_bytes, findings);
  check_disk_io(folder, findings);
}

void check_remote_tier(const RuntimeOptions& options, Findings& findings) {
  if (options.kv_remote.empty()) return findings.ok("remote", "no --kv-remote");
  try {
    const RemoteUrl url = parse_remote_url(options.kv_remote);
    const auto tls = make_remote_tls(url.is_tls, options.kv_remote_tls);
    const std::atomic<bool> stop{false};
    RemoteHost host(url.host, url.port);
    RemoteConnection connection(url, host, stop, tls.get());
    const std::string fix = "start it, or correct host, port and password of --kv-remote";
    // No more time than the server will give it.
    const RemoteTierConfig limits;
    const std::int64_t open_by_ns = steady_now_ns() + limits.connect_timeout_ms * kNsPerMs;
    if (connection.open(open_by_ns) != RemoteOutcome::kOk)
      return findings.fail("remote", fmt::format("{}: {}", url.display(), connection.error()), fix);
    std::string command, info;
    append_command(command, {"INFO"});
    const RemoteExchange exchange{
        .pieces = {std::as_bytes(std::span(command))},
        .num_replies = 1,
        .max_reply_bytes = std::int64_t{1} << 20,
        .on_reply = [&](int, const RemoteReply& reply) { info = reply.text(); }};
    if (connection.exchange(exchange, steady_now_ns() + limits.batch_timeout_ms * kNsPerMs) !=
        RemoteOutcome::kOk)
      return findings.fail("remote", fmt::format("{}: {}", url.display(), connection.error()), fix);
    report_redis(url, info, connection.round_trip_ns(), findings);
  } catch (const Error& error) {
    findings.fail("remote", error.what(), "--kv-remote redis://[[user]:password@]host[:port][/db], or rediss:// for TLS");
  }
}

}  // namespace larder
