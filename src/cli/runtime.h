// Everything that a command needs to run a model, built in order: file, plan, memory, engine.
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "cli/drafting.h"
#include "cli/workers.h"
#include "engine/engine.h"
#include "engine/request_check.h"
#include "kernels/device.h"
#include "kv/kv_layout.h"
#include "kv/kv_storage.h"
#include "kv/tiers/remote_tls.h"
#include "model/files/model_files.h"
#include "model/forward/transformer.h"
#include "model/forward/weights.h"
#include "model/model_config.h"
#include "plan/plan.h"
#include "server/server_limits.h"
#include "tokenizer/jinja/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace larder {

struct RuntimeOptions {
  std::string model = "smollm2-135m";  // a path to a GGUF, or a name that `larder pull` knows
  int num_threads = 0;                 // 0 = the machine's cores
  std::string device = "cpu";          // or cuda:N, or auto
  std::string activations = "int8";    // or f32, the reference path
  std::string kv_type = "f16";         // for parse_kv_types()
  std::string kv_size;                 // bytes of KV blocks; "" = chosen by the plan
  std::string memory;                  // bytes of the whole process; "" = chosen by the plan
  int max_model_len = 0;               // 0 = what the model and the memory allow
  int max_batch_tokens = 512;
  int max_prefill_tokens = 0;          // 0 = max_batch_tokens
  double max_step_slowdown = 2;
  int max_sequences = 256;
  int max_draft_tokens = 8;  // 0 = none
  std::string draft_model;   // as model; "" = none
  WorkerOptions workers;
  AttentionSpan attention;  // endless context, where a request does not say; window 0 = off
  std::string eviction = "density";  // or lru
  int pin_percent = 50;              // of the KV blocks, at most, that requests may pin
  std::string chat_template_file;  // "" = the one in the model's file
  std::string kv_host;             // bytes of the host tier behind a GPU; "" = none
  std::string kv_disk;             // directory of the disk tier; "" = none
  std::string kv_disk_size = "10GiB";
  std::string kv_remote;           // redis:// or rediss://host:port of the remote tier; "" = none
  RemoteTlsFiles kv_remote_tls;    // for rediss://
  int kv_remote_ttl_seconds = 0;   // of what is written there; 0 = for ever
  int kv_remote_compression = 0;   // zstd's level, 0 = none
  // What a server keeps of requests, at most; see bookkeeping_bytes().
  std::int64_t bookkeeping_bytes = 0;
  int max_connections = ServerLimits{}.max_connections;
  std::int64_t next_turn_bytes = 0;  // and besides, where the chat template prints answers anew, see next_turn_bytes()
  bool records_kv_events = false;  // EngineConfig's
  // One more tier, nearer than the others; for benchmarks.
  std::function<std::unique_ptr<KvTier>()> make_tier;
};

ActivationType activations_of(const RuntimeOptions& options);
// --threads, else the cores.
int num_threads_of(const RuntimeOptions& options);

// All that grows with the requests of a server, to its bounds.
std::int64_t bookkeeping_bytes(const ServerLimits& limits);
std::int64_t next_turn_bytes(const ServerLimits& limits);

// The options above, on a command.
void add_runtime_options(CLI::App& command, RuntimeOptions& options);

// What a file says, without its weights.
struct ModelFile {
  std::string path;
  // What all is read from, so that weights and blocks belong to this configuration whatever comes
  // to lie at the path meanwhile. Null in a Runtime, which has read all.
  std::unique_ptr<const ModelFiles> files;
  std::int64_t file_bytes = 0;
  std::int64_t weights_bytes = 0;  // repacked
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
};

// What --kv-size, --memory and -c fix. Throws Error{kInvalidArgument} for a size that is none.
PlanOptions plan_options(const RuntimeOptions& options);

// Throws Error{kInvalidArgument} for what is refused of any model: a size or a KV type that is none, a
// window that no request could have.
void check_options(const RuntimeOptions& options);

inline constexpr SpanNames kSpanOptions = {"--attention-window", "--attention-sinks"};

// A line on standard error where --max-model-len is more than that and no window keeps within it.
void warn_beyond_training(const RuntimeOptions& options, int context_len);

// For Weights: the file's pages go as it is packed, so that the peak of memory is what the process then takes; then
// it tells `next`, if there is one.
LoadProgress drop_as_packed(const ModelFiles& files, LoadProgress next = {});

// Throws Error{kNotFound} where there is none, and what its parts throw.
ModelFile read_model_file(const RuntimeOptions& options);

// The plan of a file under these options; nothing of it is taken yet.
struct PlannedModel {
  ModelFile file;
  std::unique_ptr<KvLayout> layout;
  TransformerLimits limits;
  std::unique_ptr<PlannedDraft> draft;  // null = none
  std::unique_ptr<WorkerLinks> workers;  // connected, nothing is loaded yet; null = none
  Plan plan;
};

// For a model with latent attention. Throws Error{kInvalidArgument} where it takes no such types.
void check_latent_types(const KvTypes& types, const RuntimeOptions& options);

// device: whose memory it is about, null = the host's. Where that has not the room, planned has the file
// nevertheless.
void plan_model_into(PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool,
                     Device* device = nullptr);

// A model in memory with its engine, started. Progress goes to stderr.
class Runtime {
 public:
  explicit Runtime(const RuntimeOptions& options);

  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return *planned_.file.tokenizer; }
  const ChatTemplate& chat_template() const { return *planned_.file.chat_template; }
  const ModelConfig& config() const { return planned_.file.config; }
  const ModelFile& file() const { return planned_.file; }
  const Plan& plan() const { return planned_.plan; }
  WorkerLinks* workers() const { return planned_.workers.get(); }  // null = none
  KvTiers* tiers() const { return tiers_.get(); }
  const KvLayout& layout() const { return *planned_.layout; }
  const KernelTable& kernels() const { return kernels_; }
  const Device* device() const { return device_.get(); }
  int num_threads() const { return pool_.num_threads(); }
  const AttentionSpan& attention() const { return attention_; }
  // Tokens of prompt and output together, under that window if there is one.
  int max_request_len() const { return attention_.window > 0 ? kMaxEndlessTokens : plan().max_model_len; }
  // Sequences that decode in one step, at most.
  int max_decodes() const {
    const TransformerLimits& limits = planned_.limits;
    return std::min(limits.max_logit_rows, limits.max_sequences);
  }

 private:
  std::vector<KeyBasis> key_basis();

  std::unique_ptr<Device> device_;  // null = the CPU
  const AttentionSpan attention_;
  SteadyClock clock_;
  ThreadPool pool_;
  PlannedModel planned_;  // may put the model on the CPU after all
  const KernelTable& kernels_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<KvStorage> storage_;
  std::unique_ptr<KvTiers> tiers_;  // null = none
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<LoadedDraft> draft_;  // null = none
  std::unique_ptr<Engine> engine_;
};

}  // namespace larder
