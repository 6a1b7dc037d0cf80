// Stages whose outputs several machines compute, seen from the server.
#include <cstring>

#include "model/forward/activation.h"
#include "model/forward/quantized_rows.h"
#include "model/forward/row_tasks.h"
#include "model/forward/transformer.h"

namespace larder {

void Transformer::send_stage(const float* x, int num_rows, const Products& products) {
  const SharedStage stage = shared_.stage(products.stage);
  write_stage_input(stage, x, buffers_.quantized, num_rows, buffers_.sent);
  partners_->send(products.stage, num_rows, {buffers_.sent, stage_input_bytes(stage, num_rows)});
}

// The others' outputs join ours, which are there.
void Transformer::receive_stage(int num_rows, const Products& products) {
  const SharedStage stage = shared_.stage(products.stage);
  if (stage.activates) activate_share(num_rows, stage.gives_codes);
  for (int machine = 1; machine < limits_.split.num_machines(); ++machine) {
    partners_->receive(machine,
                       {buffers_.received, stage_reply_bytes(stage, {limits_.split, machine}, num_rows)});
    if (stage.activates)
      take_activated(stage, machine, num_rows);
    else
      take_outputs(stage, machine, num_rows, products);
  }
}

void Transformer::take_outputs(const SharedStage& stage, int machine, int num_rows, const Products& products) {
  const std::byte* from = buffers_.received;
  for (std::size_t i = 0; i < products.count; ++i) {
    const SharedProduct& product = stage.products[i];
    const RowRange columns = limits_.split.rows_of(machine, product.num_outputs);
    const std::size_t size_bytes = static_cast<std::size_t>(columns.size()) * sizeof(float);
    const int product_rows = product.has_rests ? 2 * num_rows : num_rows;
    for_row_tasks(pool_, product_rows, [&](int begin, int end) {
      for (std::int64_t row = begin; row < end; ++row)
        std::memcpy(products.of[i].y + row * product.num_outputs + columns.begin,
                    from + static_cast<std::size_t>(row) * size_bytes, size_bytes);
    });
    from += static_cast<std::size_t>(product_rows) * size_bytes;
  }
}

// Our part of gate and up, as the input of what comes next: row by row, since it is a part of each.
void Transformer::activate_share(int num_rows, bool wants_codes) {
  const int num_cols = limits_.split.rows_of(0, config_.ffn_size).size();
  const auto activate = activation_kernel(kernels_, config_.activation);
  buffers_.quantized.num_cols = config_.ffn_size;
  for_row_tasks(pool_, num_rows, [&](int begin, int end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* gate = buffers_.gate + row * config_.ffn_size;
      activate(gate, buffers_.up + row * config_.ffn_size, gate, num_cols);
      if (!wants_codes) continue;
      QuantizedRows codes = rows_from(buffers_.quantized, row);
      codes.num_cols = num_cols;
      kernels_.quantize_rows(gate, num_cols, codes, 0, 1);
    }
  });
}

void Transformer::take_activated(const SharedStage& stage, int machine, int num_rows) {
  const RowRange columns = limits_.split.rows_of(machine, config_.ffn_size);
  if (stage.gives_codes)
    return read_codes(buffers_.received, num_rows, columns.size(), buffers_.quantized, columns.begin);
  const std::size_t size_bytes = static_cast<std::size_t>(columns.size()) * sizeof(float);
  for (std::int64_t row = 0; row < num_rows; ++row)
    std::memcpy(buffers_.gate + row * config_.ffn_size + columns.begin,
                buffers_.received + static_cast<std::size_t>(row) * size_bytes, size_bytes);
}

// Of whole rows of logits, which no machine had by itself, or which have been capped since.
void Transformer::find_maxima(int num_rows) {
  pool_.parallel_for_near(num_rows, [&](int row, int) {
    kernels_.run_maxima(buffers_.logits + std::int64_t{row} * config_.vocab_size, config_.vocab_size,
                        buffers_.maxima + std::int64_t{row} * num_logit_runs(config_.vocab_size));
  });
}

}  // namespace larder
