// Where a Transformer's buffers lie in its scratch memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "model/forward/scratch_placer.h"
#include "model/forward/transformer.h"

namespace larder {

// Places the buffers of a Transformer one after another. With base null it only counts.
struct ScratchPlan {
  Transformer::Buffers buffers;
  std::size_t size_bytes = 0;

  ScratchPlan(const ModelConfig& config, const TransformerLimits& limits, bool on_device,
              std::byte* base) {
    ScratchPlacer placer(base);
    const auto rows = static_cast<std::size_t>(limits.max_batch_tokens);
    const auto hidden = static_cast<std::size_t>(config.hidden_size);
    const auto q_size = static_cast<std::size_t>(config.q_size());
    const auto o_size = static_cast<std::size_t>(config.o_size());
    const auto kv_size = static_cast<std::size_t>(config.kv_size());
    const auto ffn = static_cast<std::size_t>(config.ffn_size);
    static_cast<Transformer::Stream&>(buffers) = place_stream(placer, config, limits, rows);
    buffers.chunk = place_stream(placer, config, limits, static_cast<std::size_t>(chunk_rows(limits)));
    buffers.q = placer.place<float>(rows * q_size);
    buffers.q_sinks = placer.place<float>(rows * q_size);
    buffers.k = placer.place<float>(rows * kv_size);
    if (config.latent.rank == 0) buffers.v = placer.place<float>(2 * rows * kv_size);
    buffers.attention = placer.place<float>(rows * q_size);
    if (config.latent.rank > 0) buffers.values = placer.place<float>(rows * o_size);
    buffers.gate = placer.place<float>(rows * ffn);
    buffers.up = placer.place<float>(rows * ffn);
    buffers.logits = placer.place<float>(static_cast<std::size_t>(limits.max_logit_rows) *
                                            static_cast<std::size_t>(config.vocab_size));
    buffers.maxima = placer.place<float>(static_cast<std::size_t>(limits.max_logit_rows) *
                                            static_cast<std::size_t>(num_logit_runs(config.vocab_size)));
    if (on_device) buffers.best = placer.place<TokenId>(num_tokens_back(limits));
    if (limits.activations == ActivationType::kInt8) {
      buffers.quantized = placer.place_quantized(rows, std::max({2 * hidden, o_size, ffn}));
      buffers.rest = placer.place<float>(rows * hidden);
      if (limits.packs_rows)
        buffers.row_room = placer.place<std::byte>(static_cast<std::size_t>(
            packed_rows_size_bytes(limits.max_batch_tokens, std::max({config.hidden_size, config.o_size(), config.ffn_size}))));
      if (on_device)
        buffers.product = placer.place<std::byte>(
            static_cast<std::size_t>(device_product_bytes(
                      limits.max_batch_tokens,
                      std::max({config.hidden_size, config.o_size(), config.ffn_size}))));
    }
    if (limits.split.is_shared()) place_exchange(placer, config, limits);
    size_bytes = placer.size_bytes();
  }

  static int chunk_rows(const TransformerLimits& limits) {
    return std::min(limits.max_chunk_tokens, limits.max_batch_tokens);
  }
  // See Buffers::best.
  static std::size_t num_tokens_back(const TransformerLimits& limits) {
    return static_cast<std::size_t>(limits.max_logit_rows) + static_cast<std::size_t>(limits.max_sequences);
  }

 private:
  // What comes back is taken machine by machine.
  void place_exchange(ScratchPlacer& placer, const ModelConfig& config, const TransformerLimits& limits) {
    const StageLimits stages{limits.max_batch_tokens, limits.max_logit_rows};
    std::size_t reply_bytes = 0;
    for (int machine = 1; machine < limits.split.num_machines(); ++machine)
      reply_bytes = std::max(reply_bytes, max_stage_reply_bytes(config, stages, {limits.split, machine}));
    buffers.sent = placer.place<std::byte>(max_stage_input_bytes(config, stages));
    buffers.received = placer.place<std::byte>(reply_bytes);
  }

  Transformer::Stream place_stream(ScratchPlacer& placer, const ModelConfig& config,
                                   const TransformerLimits& limits, std::size_t rows) {
    const auto hidden = static_cast<std::size_t>(config.hidden_size);
    const std::size_t table = 2 * config.ropes.size() *
                              static_cast<std::size_t>(limits.max_batch_tokens) *
                              (static_cast<std::size_t>(config.rope_dim) / 2);
    Transformer::Stream stream;
    stream.hidden = placer.place<float>(rows * hidden);
    stream.normed = placer.place<float>(rows * hidden);
    stream.cos = placer.place<float>(table);
    stream.sin = placer.place<float>(table);
    return stream;
  }
};

}  // namespace larder
