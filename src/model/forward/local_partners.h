// The other machines of a split, in this process: for tests.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "model/forward/product_partners.h"
#include "model/forward/shared_products.h"
#include "model/forward/transformer.h"
#include "model/forward/weights.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace larder {

class LocalPartners final : public ProductPartners {
 public:
  // gguf must outlive it.
  LocalPartners(const GgufFile& gguf, OutputSplit split, const KernelTable& kernels, const TransformerLimits& limits)
      : gguf_(gguf), config_(read_model_config(gguf_)), split_(std::move(split)) {
    const StageLimits stages{limits.max_batch_tokens, limits.max_logit_rows};
    input_ = AlignedBuffer(max_stage_input_bytes(config_, stages) + StageComputer::kSlackBytes);
    for (int i = 1; i < split_.num_machines(); ++i)
      machines_.push_back(std::make_unique<Machine>(*this, MachineShare{split_, i}, kernels, stages,
                                                    limits.activations == ActivationType::kInt8));
  }

  // What the server holds.
  std::unique_ptr<Weights> server_weights() {
    return std::make_unique<Weights>(config_, gguf_, pool_, LoadProgress(), nullptr, config_.num_layers(),
                                     MachineShare{split_, 0});
  }
  int num_exchanges() const { return num_exchanges_; }
  // From so many more exchanges on, PartnerLost; -1: never.
  void lose_after(int num_exchanges) { num_left_ = num_exchanges; }

  void send(StageId stage, int num_rows, std::span<const std::byte> input) override {
    // What the others compute with is what is sent, whatever becomes of the server's own.
    std::memcpy(input_.data(), input.data(), input.size());
    input_bytes_ = input.size();
    stage_ = stage;
    num_rows_ = num_rows;
    ++num_exchanges_;
  }

  void receive(int machine, std::span<std::byte> reply) override {
    if (num_left_ == 0) throw PartnerLost("lost");
    if (num_left_ > 0) --num_left_;
    const auto outputs = machines_[static_cast<std::size_t>(machine - 1)]->computer.compute(
        stage_, num_rows_, {input_.data(), input_bytes_});
    CHECK(outputs.size() == reply.size(), outputs.size(), reply.size());
    std::memcpy(reply.data(), outputs.data(), outputs.size());
  }

 private:
  struct Machine {
    Machine(LocalPartners& all, const MachineShare& share, const KernelTable& kernels, const StageLimits& limits, bool int8)
        : weights(all.config_, all.gguf_, all.pool_, {}, nullptr, all.config_.num_layers(), share),
          model(all.config_, weights, kernels, int8),
          computer(model, share, kernels, all.pool_, limits) {}

    Weights weights;
    SharedModel model;
    StageComputer computer;
  };

  const GgufFile& gguf_;
  ModelConfig config_;
  OutputSplit split_;
  ThreadPool pool_{2};
  std::vector<std::unique_ptr<Machine>> machines_;
  AlignedBuffer input_;
  std::size_t input_bytes_ = 0;
  StageId stage_;
  int num_rows_ = 0;
  int num_exchanges_ = 0;
  int num_left_ = -1;
};

}  // namespace larder
