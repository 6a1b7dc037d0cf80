#include "cli/tiers.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "cli/commands.h"
#include "kv/kv_type_names.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/remote_url.h"
#include "model/files/content_hash.h"

namespace larder {
namespace {

// Counts up whenever the same model and options give other bytes in a block than before.
constexpr int kBlockVersion = 8;

constexpr std::int64_t kLoadBufferBytes = std::int64_t{32} << 20;
constexpr std::int64_t kIndexBytesPerBlock = 200;
constexpr std::int64_t kWriteBufferBytes = std::int64_t{64} << 20;
// What TLS has of its own; the system's certificates are 1.3 MiB of it.
constexpr std::int64_t kTlsBytes = std::int64_t{4} << 20;

// All that a block's bytes depend on beside its tokens: whoever agrees in this may use it.
Digest fingerprint(const RuntimeOptions& options, const PlannedModel& planned,
                   const KernelTable& kernels, const Device* device) {
  const ModelFiles& files = *planned.file.files;
  std::string text = fmt::format("larder {} {} {} {} {} ", kBlockVersion, content_hash(files), files.size_bytes(),
                                 kernels.name, options.activations);
  // Tensor cores and approximations round as a GPU's generation does.
  if (device != nullptr) text += device->arch() + " ";
  const std::vector<double> numbers = computed_numbers(planned.file.config, device == nullptr);
  text += to_hex(sha256(std::as_bytes(std::span(numbers)))) + " ";
  const KvLayout& layout = *planned.layout;
  text += fmt::format("{} {} {}", format_kv_types(layout.types()), kBlockSize,
                      layout.block_size_bytes());
  for (int index = 0; index < layout.num_groups(); ++index) {
    text += fmt::format(" [{}", layout.group(index).window);
    for (const int layer : layout.group(index).layers) text += fmt::format(" {}", layer);
    text += "]";
  }
  // What was measured at this start: another instruction set may round it differently.
  for (const KeyBasis& basis : layout.key_basis()) {
    text += to_hex(sha256(std::as_bytes(std::span(basis.balance))));
    text += to_hex(sha256(std::as_bytes(std::span(basis.order))));
  }
  return sha256(std::as_bytes(std::span(text)));
}

// What a tier finds wrong is told by the name of what it was given.
template <class Function>
void of_option(const char* name, const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", name, error.message()));
  }
}

std::unique_ptr<KvTier> make_host_tier(const RuntimeOptions& options, const TierFormat& format,
                                       Device* device) {
  const std::int64_t size_bytes = parse_bytes("--kv-host", options.kv_host);
  const std::int64_t available_bytes = available_memory_bytes();
  if (size_bytes > available_bytes)
    throw Error(ErrorKind::kUnavailable,
                fmt::format("--kv-host {}: the host has {} available; give less", options.kv_host,
                            format_bytes(available_bytes)));
  std::unique_ptr<HostTier> tier;
  of_option("--kv-host",
            [&] { tier = std::make_unique<HostTier>(size_bytes, format.block_size_bytes, device); });
  std::fprintf(stderr, "Host memory: KV %s\n", format_bytes(size_bytes).c_str());
  return tier;
}

}  // namespace

void add_tier_options(CLI::App& command, RuntimeOptions& options) {
  command.add_option("--kv-host", options.kv_host,
                     "Memory of the host that keeps complete KV blocks behind a GPU, such as 32GiB "
                     "(default: none)")
      ->check(not_empty());
  CLI::Option* const disk = command.add_option("--kv-disk", options.kv_disk,
                     "A directory where complete KV blocks are kept, to be found again after a "
                     "restart (default: none)")
      ->check(not_empty());
  command.add_option("--kv-disk-size", options.kv_disk_size, "Bytes that it may take (default 10GiB)")->needs(disk);
  CLI::Option* const remote = command.add_option("--kv-remote", options.kv_remote,
                     "A Redis or Valkey server that shares complete KV blocks with other servers: "
                     "redis://[[user]:password@]host[:port][/db], or rediss:// with TLS (default: none)")
      ->check(not_empty());
  command
      .add_option("--kv-remote-ca", options.kv_remote_tls.ca,
                  "With rediss://: a file of certificates to trust (PEM; default: those that the system trusts)")
      ->needs(remote)
      ->check(not_empty());
  CLI::Option* const certificate =
      command.add_option("--kv-remote-cert", options.kv_remote_tls.certificate,
                         "With rediss://: this server's own certificate (PEM), for a server that asks for one");
  certificate->needs(remote)->check(not_empty());
  command
      .add_option("--kv-remote-key", options.kv_remote_tls.key, "Its key (PEM; default: in the certificate's file)")
      ->needs(certificate)
      ->check(not_empty());
  command
      .add_option("--kv-remote-ttl", options.kv_remote_ttl_seconds,
                  "Seconds that it keeps a block; 0 = until it needs the room (default)")
      ->needs(remote)
      ->check(CLI::Range(0, 365 * 86400));
  command
      .add_option("--kv-remote-compression", options.kv_remote_compression,
                  "zstd's level for what is sent there; 0 = none (default)")
      ->needs(remote)
      ->check(CLI::Range(0, 19));
}

void check_tier_options(const RuntimeOptions& options) {
  if (!options.kv_host.empty()) (void)parse_bytes("--kv-host", options.kv_host);
  if (!options.kv_disk.empty()) (void)parse_bytes("--kv-disk-size", options.kv_disk_size);
  if (!options.kv_remote.empty()) of_option("--kv-remote", [&] {
    (void)make_remote_tls(parse_remote_url(options.kv_remote).is_tls, options.kv_remote_tls);
  });
}

std::int64_t disk_index_bytes(const RuntimeOptions& options, const KvLayout& layout) {
  if (options.kv_disk.empty()) return 0;
  return parse_bytes("--kv-disk-size", options.kv_disk_size) / layout.block_size_bytes() * kIndexBytesPerBlock;
}

std::int64_t tier_memory_bytes(const RuntimeOptions& options, const KvLayout& layout) {
  if (options.kv_disk.empty() && options.kv_remote.empty()) return 0;
  std::int64_t size_bytes = kLoadBufferBytes;
  if (!options.kv_disk.empty()) size_bytes += kWriteBufferBytes + disk_index_bytes(options, layout);
  if (!options.kv_remote.empty())
    size_bytes += kWriteBufferBytes + (parse_remote_url(options.kv_remote).is_tls ? kTlsBytes : 0);
  return size_bytes;
}

std::unique_ptr<KvTiers> make_tiers(const RuntimeOptions& options, const PlannedModel& planned,
                                    const KernelTable& kernels, KvStorage& storage) {
  if (options.kv_host.empty() && options.kv_disk.empty() && options.kv_remote.empty() &&
      !options.make_tier)
    return nullptr;
  // It reads the whole file, for those alone whose blocks another process may find.
  const bool outlives_us = !options.kv_disk.empty() || !options.kv_remote.empty();
  const TierFormat format{
      .fingerprint =
          outlives_us ? fingerprint(options, planned, kernels, storage.device()) : Digest{},
      .block_size_bytes = planned.layout->block_size_bytes()};
  std::vector<std::unique_ptr<KvTier>> tiers;
  if (options.make_tier) tiers.push_back(options.make_tier());
  if (!options.kv_host.empty()) tiers.push_back(make_host_tier(options, format, storage.device()));
  if (!options.kv_disk.empty()) {
    DiskTierConfig config;
    config.directory = options.kv_disk;
    config.size_bytes = parse_bytes("--kv-disk-size", options.kv_disk_size);
    config.staging_size_bytes = kWriteBufferBytes;
    of_option("--kv-disk", [&] { tiers.push_back(std::make_unique<DiskTier>(config, format)); });
  }
  if (!options.kv_remote.empty()) {
    RemoteTierConfig config;
    config.url = options.kv_remote;
    config.tls = options.kv_remote_tls;
    config.ttl_seconds = options.kv_remote_ttl_seconds;
    config.compression_level = options.kv_remote_compression;
    config.staging_size_bytes = kWriteBufferBytes;
    of_option("--kv-remote", [&] { tiers.push_back(std::make_unique<RemoteTier>(config, format)); });
  }
  return std::make_unique<KvTiers>(std::move(tiers), storage, format.block_size_bytes,
                                   kLoadBufferBytes);
}

}  // namespace larder
