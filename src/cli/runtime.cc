#include "cli/runtime.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/spare_memory.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/pull.h"
#include "cli/tiers.h"
#include "engine/idle_line.h"
#include "engine/sampler.h"
#include "grammar/token_masks.h"
#include "kv/cache/kv_cache.h"
#include "kv/kv_type_names.h"
#include "model/files/key_basis_file.h"
#include "model/forward/kernel_needs.h"
#include "model/forward/key_calibration.h"
#include "model/forward/most_running.h"
#include "model/vocabulary.h"
#include "plan/largest.h"
#include "plan/step_speed.h"
#include "server/api/event_log.h"
#include "server/chat/next_turn.h"
#include "server/http/client_memory.h"
#include "server/report/cache_log.h"
#include "server/server_limits.h"

namespace larder {
namespace {

// Beside what is measured after the vocabulary is loaded: what a server takes to serve the first few clients, I/O
// threads' stacks. What more clients take is bookkeeping, see client_memory.h.
constexpr std::int64_t kServingBytes = std::int64_t{5} << 20;
// Pages of the model's file that may stay in memory beside what was packed from them.
constexpr std::size_t kFileWindowBytes = std::size_t{32} << 20;

TransformerLimits transformer_limits(const RuntimeOptions& options, const ModelConfig& config) {
  TransformerLimits limits;
  limits.max_batch_tokens = options.max_batch_tokens;
  limits.max_logit_rows = std::min(kMaxLogitRows, options.max_batch_tokens);
  limits.max_context_len = options.max_model_len > 0 ? options.max_model_len : config.context_len;
  limits.max_sequences =
      std::min(options.max_sequences, most_running(limits.max_batch_tokens, limits.max_logit_rows));
  limits.activations = activations_of(options);
  return limits;
}

EvictionKind eviction_kind(const RuntimeOptions& options) {
  return options.eviction == "lru" ? EvictionKind::kLru : EvictionKind::kDensity;
}

// What it takes to serve requests of some length.
struct LengthPlan {
  TransformerLimits limits;
  Plan plan;
};

// Scratch grows with the context, of which files promise far more than the KV cache will hold: no more is taken than
// for what is served, and what does not fit with all of it may with less, unless it was asked for.
LengthPlan plan_any_context(const std::function<LengthPlan(int max_context_len)>& plan_for, int max_context_len, bool is_asked) {
  if (is_asked) return plan_for(max_context_len);
  const std::int64_t longest = largest(max_context_len, [&](std::int64_t length) {
    try {
      return plan_for(static_cast<int>(length)).plan.max_model_len >= length;
    } catch (const Error&) {
      return false;
    }
  });
  return plan_for(std::max(static_cast<int>(longest), std::min(max_context_len, 2 * kBlockSize)));
}

// A bar on a terminal, nothing in a log.
void show_progress(std::size_t done_bytes, std::size_t total_bytes) {
  if (!::isatty(STDERR_FILENO) || total_bytes == 0) return;
  std::fprintf(stderr, "\rLoading weights %3zu %%", done_bytes * 100 / total_bytes);
  if (done_bytes == total_bytes) std::fprintf(stderr, "\r\033[K");
}

}  // namespace

LoadProgress drop_as_packed(const ModelFiles& files, LoadProgress next) {
  return [&files, next = std::move(next), dropped_bytes = std::size_t{0}](std::size_t done_bytes, std::size_t total_bytes) mutable {
    if (next) next(done_bytes, total_bytes);
    if (done_bytes < dropped_bytes + kFileWindowBytes) return;
    files.drop_pages();
    dropped_bytes = done_bytes;
  };
}

PlanOptions plan_options(const RuntimeOptions& options) {
  if (!options.kv_size.empty() && !options.memory.empty())
    throw_invalid("--kv-size and --memory: give one of them");
  const auto bytes_of = [](const char* name, const std::string& text) -> std::int64_t {
    if (text.empty()) return 0;
    const std::int64_t bytes = parse_bytes(name, text);
    if (bytes == 0) throw_invalid("{} {}: must be more than 0", name, text);
    return bytes;
  };
  return {.memory_bytes = bytes_of("--memory", options.memory),
          .kv_bytes = bytes_of("--kv-size", options.kv_size),
          .max_model_len = options.max_model_len};
}

void check_options(const RuntimeOptions& options) {
  (void)plan_options(options);
  (void)parse_kv_types(options.kv_type);
  check_tier_options(options);
  check_worker_options(options.workers);
  if (!options.draft_model.empty() && options.max_draft_tokens == 0)
    throw_invalid("--draft-model: --draft-tokens 0 asks for no guesses; give it 1 to 15, or leave it out");
  if (options.max_prefill_tokens > options.max_batch_tokens)
    throw_invalid("--prefill-tokens {}: at most --batch-tokens, which is {}", options.max_prefill_tokens,
                  options.max_batch_tokens);
  check_span(options.attention,
             {.max_model_len = options.max_model_len > 0 ? options.max_model_len : std::numeric_limits<int>::max(),
              .max_batch_tokens = options.max_batch_tokens},
             kSpanOptions);
}

void warn_beyond_training(const RuntimeOptions& options, int context_len) {
  const AttentionSpan& span = options.attention;
  if (options.max_model_len <= context_len) return;
  if (span.window > 0 && span.window + span.num_sinks <= context_len) return;
  std::fprintf(stderr,
               "Warning: --max-model-len %d goes beyond the %d tokens that the model was trained for, and "
               "so may its answers; --attention-window has them see the last tokens only\n",
               options.max_model_len, context_len);
}

static std::unique_ptr<ChatTemplate> read_own_template(const std::string& path) {
  const std::string source = read_text_file(path);
  try {
    return std::make_unique<ChatTemplate>(source);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path, error.what()));
  }
}

ModelFile read_model_file(const RuntimeOptions& options) {
  ModelFile file;
  if (!options.chat_template_file.empty()) {
    try {
      file.chat_template = read_own_template(options.chat_template_file);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("--chat-template {}", error.what()));
    }
  }
  file.path = find_model(options.model);
  file.files = std::make_unique<const ModelFiles>(file.path);
  const GgufFile& gguf = file.files->gguf();
  try {
    file.file_bytes = static_cast<std::int64_t>(file.files->size_bytes());
    file.config = read_model_config(gguf, options.max_model_len);
    file.weights_bytes = static_cast<std::int64_t>(weights_size_bytes(file.config, gguf));
    file.tokenizer = std::make_unique<Tokenizer>(read_vocabulary(gguf));
    if (file.chat_template == nullptr) file.chat_template = std::make_unique<ChatTemplate>(read_chat_template(gguf));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", file.path, error.what()));
  }
  file.files->drop_pages();  // a plan counts what is resident
  warn_beyond_training(options, file.config.context_len);
  if (file.chat_template->is_default())
    std::fprintf(stderr, "Warning: the chat template: the file has none, chats take ChatML; --chat-template "
                         "FILE.jinja, if it was trained with another\n");
  if (const std::string warning = file.chat_template->warning(); !warning.empty())
    std::fprintf(stderr, "Warning: the chat template: %s\n", warning.c_str());
  return file;
}

static void add_memory_options(CLI::App& command, RuntimeOptions& options) {
  command.add_option("--kv-type", options.kv_type,
                     "How keys and values are stored: f16 (default), bf16, fp8, int8 or "
                     "int4; k=int8,v=int4 apart");
  command.add_option("--kv-size", options.kv_size,
                     "Memory of the KV cache, such as 2GiB (default: room for eight full contexts, "
                     "1 to 4 GiB, at most half of what is free)")
      ->check(not_empty());
  command.add_option("--memory", options.memory,
                     "Memory of the whole process, such as 8GiB, in place of --kv-size; the KV "
                     "cache takes what is left")
      ->check(not_empty());
  command
      .add_option("-c,--max-model-len", options.max_model_len,
                  "Longest prompt and output together, in tokens (default: the model's own, if "
                  "the KV cache holds it)")
      ->check(CLI::Range(32, 1 << 24));
}

static void add_step_options(CLI::App& command, RuntimeOptions& options) {
  command
      .add_option("--batch-tokens", options.max_batch_tokens,
                  "Tokens computed in one step, at most (default 512)")
      ->check(CLI::Range(1, 8192));
  command
      .add_option("--prefill-tokens", options.max_prefill_tokens,
                  "Of --batch-tokens, those of prompts while other requests decode: fewer keep their tokens coming "
                  "evenly (default: all that --step-slowdown allows)")
      ->check(CLI::Range(1, 8192));
  command
      .add_option("--step-slowdown", options.max_step_slowdown,
                  "How much longer a step may last when prompts join those who decode: 2 = about twice (default), "
                  "0 = no limit; it may last longer when more requests wait than decode, and up to 60 ms when "
                  "several wait or one prompt would be done within three such steps")
      ->check(CLI::Validator(
          [](std::string& text) {
            const double value = number_in(text);
            return value == 0 || (value > 1 && value <= 1000)
                       ? std::string()
                       : "must be 0 or above 1, at most 1000, such as 2";
          },
          "FLOAT"));
  command
      .add_option("--max-sequences", options.max_sequences,
                  "Answers under way at once (each of a request's n counts), at most one fewer than --batch-tokens; "
                  "up to 64 of them get a token in one step, more requests wait in line (default 256)")
      ->check(CLI::Range(1, 65536));
  command
      .add_option("--draft-tokens", options.max_draft_tokens,
                  "Tokens of an answer that are guessed ahead, from what it and the cache have seen, and computed in "
                  "one step where that is faster, at most; no guess changes a token (default 8, for bench 0; 0 = none)")
      ->check(CLI::Range(0, 15));
  command
      .add_option("--draft-model", options.draft_model,
                  "A small model of the same vocabulary that guesses, too, where that is faster, given as --model is; on a "
                  "CPU (default: none)")
      ->check(not_empty());
}

void add_runtime_options(CLI::App& command, RuntimeOptions& options) {
  command.add_option("-m,--model", options.model,
                     "A GGUF file, a folder as Hugging Face keeps models, or a name that `larder pull` knows "
                     "(default smollm2-135m)");
  command.add_option("-t,--threads", options.num_threads, "Threads (default: the cores)")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--device", options.device,
                  "Where to compute: cpu (default); cuda:0, an NVIDIA GPU by its number; auto, the "
                  "first GPU if there is one")
      ->check(CLI::Validator(
          [](std::string& text) {
            return text == "auto" || text == "cpu" || cuda_index(text) >= 0
                       ? std::string()
                       : "must be auto, cpu or cuda:N, such as cuda:0";
          },
          "DEVICE"));
  command
      .add_option("--activations", options.activations,
                  "int8: fast (default); f32: the reference path, several times slower")
      ->check(CLI::IsMember({"int8", "f32"}));
  add_memory_options(command, options);
  add_step_options(command, options);
  command
      .add_option("--attention-window", options.attention.window,
                  "Endless context: a token sees that many tokens before it and the first "
                  "--attention-sinks; the cache that it takes stays constant (default: off, the context ends)")
      ->check(CLI::Range(0, 1 << 20));
  command
      .add_option("--attention-sinks", options.attention.num_sinks,
                  "With --attention-window: tokens at the beginning that stay in sight (16 is "
                  "usual)")
      ->check(CLI::Range(0, 512));
  command
      .add_option("--eviction", options.eviction,
                  "Which cached blocks go first: density, the fewest expected hits (default); lru")
      ->check(CLI::IsMember({"density", "lru"}));
  command
      .add_option("--pin-percent", options.pin_percent,
                  "Part of the KV cache that requests may pin by a TTL (default 50)")
      ->check(CLI::Range(0, 100));
  add_tier_options(command, options);
  add_worker_options(command, options.workers);
  command.add_option("--chat-template", options.chat_template_file,
                     "A Jinja file to use instead of the model's own chat template")
      ->check(not_empty());
}

ActivationType activations_of(const RuntimeOptions& options) {
  return options.activations == "f32" ? ActivationType::kF32 : ActivationType::kInt8;
}

int num_threads_of(const RuntimeOptions& options) {
  if (options.num_threads > 0) return options.num_threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::int64_t bookkeeping_bytes(const ServerLimits& limits) {
  const CacheLogLimits of_log{.max_ledger_bytes = limits.max_ledger_bytes};
  const auto in_line_bytes =
      EngineConfig{}.max_waiting_tokens * static_cast<std::int64_t>(sizeof(TokenId));
  // What is usual on the way in is left out (docs/planning.md); a body is there as bytes, parsed, as a
  // prompt's text and as tokens.
  constexpr std::size_t kCopies = 4;
  const std::size_t usual_bytes = ServerLimits{}.max_total_body_bytes;
  const std::size_t body_bytes = std::max({limits.max_total_body_bytes, limits.max_body_bytes, usual_bytes});
  return in_line_bytes + static_cast<std::int64_t>((body_bytes - usual_bytes) * kCopies) +
         static_cast<std::int64_t>(limits.max_history_bytes + limits.max_session_bytes + limits.max_total_draft_bytes +
                                   limits.max_summary_bytes + limits.max_constraint_bytes + of_log.max_bytes() +
                                   limits.max_background_event_bytes +
                                   limits.max_background_responses * EventLog::kFreeBytes + kSpareBytes);
}

std::int64_t next_turn_bytes(const ServerLimits& limits) {
  return static_cast<std::int64_t>(limits.max_next_turn_bytes + IdleLine::kMostBytes);
}

// What constrained answers take beside their formats, once there is one.
std::int64_t constraints_bytes(int vocab_size, int num_threads) {
  return static_cast<std::int64_t>(TokenTrie::most_bytes(vocab_size)) +
         num_threads * static_cast<std::int64_t>(TokenMasks::kMaxBytes);
}

// What is kept of requests, if there are any, for this model.
std::int64_t bookkeeping_bytes(const RuntimeOptions& options, const PlannedModel& planned, int num_threads) {
  if (options.bookkeeping_bytes == 0) return 0;
  const ModelFile& file = planned.file;
  std::int64_t bytes = options.bookkeeping_bytes + clients_bytes(options.max_connections, planned.limits.max_sequences) +
                       constraints_bytes(file.config.vocab_size, num_threads);
  if (options.next_turn_bytes > 0 && may_reprint_answers(probe_template(*file.chat_template), *file.tokenizer))
    bytes += options.next_turn_bytes;
  return bytes;
}

// What is kept beside KV blocks: by the cache, and of the answers whose tokens they hold.
KvBookkeeping beside_blocks(const RuntimeOptions& options, const KvLayout& layout, int num_blocks) {
  KvBookkeeping beside = KvCache::bookkeeping(
      layout,
      {.num_blocks = num_blocks,
       .eviction = eviction_kind(options),
       .max_pinned_share = options.pin_percent / 100.0},
      static_cast<int>(!options.kv_disk.empty()) + static_cast<int>(!options.kv_remote.empty()));
  if (options.bookkeeping_bytes > 0) beside.growth_bytes += num_blocks * kBlockSize * kAnswerTokenBytes;
  return beside;
}

// Of all threads that compute on a CPU: the pool's, of which the engine's is one, and that of the start where it measures keys.
std::int64_t kernel_stacks_bytes(const PlannedModel& planned, const ThreadPool& pool) {
  const KernelTable& kernels = select_kernels();
  const auto bytes_of = [&](const ModelConfig& config, const GgufFile& gguf, KvTypes types, const TransformerLimits& limits) {
    PagedKvView blocks;
    blocks.head_dim = config.head_dim;
    blocks.types = types;
    return kernel_stack_bytes(kernels, list_matrices(config, gguf), blocks, limits);
  };
  const KvTypes types = planned.layout->types();
  std::int64_t bytes = bytes_of(planned.file.config, planned.file.files->gguf(), types, planned.limits);
  if (const PlannedDraft* draft = planned.draft.get())
    bytes = std::max(bytes, bytes_of(draft->config, draft->files->gguf(), KvTypes{}, draft->limits));
  return (pool.num_threads() + (has_codes(types.k) ? 1 : 0)) * bytes;
}

// The text by which keys are measured, where they are codes.
std::vector<TokenId> calibration_tokens(const ModelFile& file) {
  return file.tokenizer->encode(kKeyCalibrationText, true, false);
}
std::int64_t measuring_bytes(const PlannedModel& planned, const ThreadPool& pool, const Device* device) {
  if (!has_codes(planned.layout->types().k)) return 0;
  const auto num_tokens = static_cast<int>(calibration_tokens(planned.file).size());
  return calibration_size_bytes(planned.file.config, num_tokens, pool, device);
}

void check_latent_types(const KvTypes& types, const RuntimeOptions& options) {
  if (is_half(types.k) && types.v == types.k) return;
  throw_invalid("--kv-type {}: {} has latent attention, whose keys are its values; f16 and bf16 are supported",
                options.kv_type, options.model);
}

// What is the same whatever the context's length.
Footprint fixed_footprint(const PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool, Device* device) {
  Footprint footprint;
  footprint.weights_bytes = planned.file.weights_bytes;
  footprint.max_batch_tokens = options.max_batch_tokens;
  footprint.measuring_bytes = measuring_bytes(planned, pool, device);
  if (device != nullptr) {
    footprint.process_bytes = device->own_bytes();
    footprint.scratch_bytes = planned.layout->key_basis_size_bytes();
    return footprint;
  }
  // The host's, which a device's memory does not hold.
  footprint.process_bytes = resident_memory_bytes() + kServingBytes + tier_memory_bytes(options, *planned.layout);
  footprint.disk_index_bytes = disk_index_bytes(options, *planned.layout);
  footprint.bookkeeping_bytes = bookkeeping_bytes(options, planned, pool.num_threads());
  footprint.beside_blocks = [&options, &layout = *planned.layout](int num_blocks) {
    return beside_blocks(options, layout, num_blocks);
  };
  footprint.scratch_bytes =
      pool.num_threads() * Sampler::size_bytes(planned.file.config.vocab_size) + kernel_stacks_bytes(planned, pool);
  return footprint;
}

void plan_model_into(PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool,
                     Device* device) {
  check_options(options);
  if (device == nullptr && !options.kv_host.empty())
    throw_invalid("--kv-host: on a CPU all KV blocks are in the host's memory; give it to --kv-size");
  PlanOptions asked = plan_options(options);
  const KvTypes types = parse_kv_types(options.kv_type);
  const std::int64_t available_bytes = plannable_bytes(device);
  if (device == nullptr) asked.memory_bound = memory_bound();
  planned.file = read_model_file(options);
  const ModelConfig& config = planned.file.config;
  if (config.latent.rank > 0) check_latent_types(types, options);
  planned.layout = std::make_unique<KvLayout>(kv_layer_shapes(config), types);
  planned.limits = transformer_limits(options, config);
  if (device == nullptr)
    planned.limits.packs_rows = takes_packed_rows(select_kernels(), config, planned.file.files->gguf(), planned.limits);
  if (!options.draft_model.empty()) {
    if (device != nullptr) throw_invalid("--draft-model: guesses are made on a CPU alone; leave it out, or take --device cpu");
    planned.draft = read_draft_model(options, planned.file);  // which may be fetched first: a worker would not wait for that
  }
  share_with_workers(planned, options, pool, device);

  const Footprint fixed = fixed_footprint(planned, options, pool, device);
  const auto plan_for = [&, &draft = std::as_const(planned.draft)](int max_context_len) {
    LengthPlan result{.limits = planned.limits, .plan = {}};
    result.limits.max_context_len = max_context_len;
    Footprint footprint = fixed;
    if (draft != nullptr) {
      add_draft_footprint(*draft, *planned.layout, result.limits, pool, footprint);
      footprint.draft_bytes += DraftModel::size_bytes(pool.num_threads(), draft->config.vocab_size, config.vocab_size);
    }
    footprint.scratch_bytes +=
        static_cast<std::int64_t>(transformer_scratch_size_bytes(config, result.limits, pool, device));
    footprint.context_length = max_context_len;
    result.plan = make_plan(*planned.layout, footprint, asked, available_bytes);
    return result;
  };
  try {
    LengthPlan chosen = plan_any_context(plan_for, planned.limits.max_context_len, options.max_model_len > 0);
    planned.limits = chosen.limits;
    planned.plan = std::move(chosen.plan);
    if (planned.draft != nullptr) planned.draft->limits = limits_beside(*planned.draft, planned.limits);
  } catch (const Error& error) {
    if (device == nullptr) throw;
    throw Error(error.kind(), fmt::format("device {}: {}", name_of_device(options), error.what()));
  }
  // Else every request would be refused for a field that it did not send.
  check_span(options.attention,
             {.max_model_len = planned.plan.max_model_len, .max_batch_tokens = options.max_batch_tokens}, kSpanOptions);
}

Runtime::Runtime(const RuntimeOptions& options)
    : device_(open_device(options)),
      attention_(options.attention),
      pool_(num_threads_of(options)),
      planned_(plan_on(options, pool_, device_)),
      kernels_(device_ ? device_->kernels() : select_kernels()) {
  const ModelFiles& files = *planned_.file.files;
  if (workers() != nullptr) workers()->assign(stage_limits(planned_.limits));  // they load while we do
  weights_ = std::make_unique<Weights>(config(), files.gguf(), pool_, drop_as_packed(files, show_progress), device_.get(),
                                       config().num_layers(), MachineShare{planned_.limits.split, 0});
  files.drop_pages();
  if (workers() != nullptr) workers()->await_ready();
  if (planned_.draft != nullptr)  // before there are blocks: what lies in memory of its file is no peak
    draft_ = std::make_unique<LoadedDraft>(*planned_.draft, planned_.plan.draft_kv_bytes, kernels_, pool_);
  if (has_codes(planned_.layout->types().k)) planned_.layout->set_key_basis(key_basis());
  const Plan& plan = planned_.plan;
  storage_ = std::make_unique<KvStorage>(*planned_.layout, plan.num_blocks, device_.get());
  tiers_ = make_tiers(options, planned_, kernels_, *storage_);
  planned_.file.files.reset();
  transformer_ = std::make_unique<Transformer>(config(), *weights_, *planned_.layout, kernels_,
                                               pool_, planned_.limits, device_.get(), workers());
  EngineConfig engine_config;
  engine_config.num_blocks = plan.num_blocks;
  engine_config.max_model_len = plan.max_model_len;
  engine_config.max_batch_tokens = options.max_batch_tokens;
  engine_config.max_prefill_tokens =
      options.max_prefill_tokens > 0 ? options.max_prefill_tokens : options.max_batch_tokens;
  engine_config.max_step_slowdown = options.max_step_slowdown;
  engine_config.max_sequences = planned_.limits.max_sequences;
  // A device draws by itself, and its steps of one row are recorded.
  engine_config.max_draft_tokens = device_ == nullptr ? options.max_draft_tokens : 0;
  engine_config.records_kv_events = options.records_kv_events;
  engine_config.eviction = eviction_kind(options);
  engine_config.max_pinned_share = options.pin_percent / 100.0;
  engine_ = std::make_unique<Engine>(engine_config, *transformer_, *storage_, *planned_.layout, tokenizer().end_tokens(),
                                     clock_, tiers_.get(), draft_ != nullptr ? &draft_->parts() : nullptr);
  engine_->start();
}

// As it was measured at an earlier start, or now.
std::vector<KeyBasis> Runtime::key_basis() {
  const std::vector<TokenId> tokens = calibration_tokens(planned_.file);
  const KeyBasisFile file(cache_folder() + "/keys",
                          key_basis_digest(*planned_.file.files, {config(), tokens}, kernels_, device_.get()));
  if (auto known = file.read(config())) return *std::move(known);
  std::vector<KeyBasis> basis = calibrate_keys(config(), *weights_, kernels_, pool_, tokens, device_.get(),
                                               workers(), planned_.limits.split);
  if (!file.write(basis)) spdlog::debug("keys: what was measured cannot be kept in {}", cache_folder());
  return basis;
}

}  // namespace larder
