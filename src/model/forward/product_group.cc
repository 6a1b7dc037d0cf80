#include "model/forward/product_group.h"

#include "base/check.h"
#include "model/forward/quantized_rows.h"
#include "model/forward/weights.h"

namespace larder {

ProductGroup::ProductGroup(const KernelTable& kernels, ThreadPool& pool, int max_products, bool int8)
    : kernels_(kernels), int8_(int8), matmul_(pool, max_products) {
  products_.reserve(static_cast<std::size_t>(max_products));
  inputs_.reserve(products_.capacity());  // products point to them
}

bool ProductGroup::wants_int8(const PackedMatrix& matrix) const { return int8_ && takes_codes(kernels_, matrix); }

void ProductGroup::add(const PackedMatrix& w, const Input& input, const Output& output) {
  if (input.num_rows == 0) return;
  CHECK(products_.size() < products_.capacity(), products_.size());
  const QuantizedRows* xq = nullptr;
  if (wants_int8(w)) {
    inputs_.push_back(rows_from(input.xq, input.first_row));
    xq = &inputs_.back();
  }
  products_.push_back({.w = &w,
                       .x = input.x + std::int64_t{input.first_row} * w.num_cols,
                       .xq = xq,
                       .rounds_to_bf16 = int8_,
                       .bias = output.bias,
                       .y = output.y,
                       .num_rows = input.num_rows,
                       .ldx = w.num_cols,
                       .ldy = output.ldy > 0 ? output.ldy : w.num_rows});
}

void ProductGroup::run() {
  matmul_.run(kernels_, products_);
  products_.clear();
  inputs_.clear();
}

}  // namespace larder
