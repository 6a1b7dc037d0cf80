// The tiers that a command's options ask for.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/runtime.h"
#include "kv/tiers/kv_tiers.h"

namespace larder {

// --kv-host, --kv-disk, --kv-remote and what belongs to them, on a command.
void add_tier_options(CLI::App& command, RuntimeOptions& options);

// Throws Error{kInvalidArgument} for what can be told without a model.
void check_tier_options(const RuntimeOptions& options);

// Memory for the index of as many blocks as --kv-disk-size holds.
std::int64_t disk_index_bytes(const RuntimeOptions& options, const KvLayout& layout);
// That, and for blocks on their way to and from the tiers.
std::int64_t tier_memory_bytes(const RuntimeOptions& options, const KvLayout& layout);

// planned: with its files. Null when the options name none. Throws Error for a directory or an
// address that cannot be used; a remote server that is merely down is not an error.
std::unique_ptr<KvTiers> make_tiers(const RuntimeOptions& options, const PlannedModel& planned,
                                    const KernelTable& kernels, KvStorage& storage);

}  // namespace larder
