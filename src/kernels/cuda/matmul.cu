// Which kernels a product goes to.
#include "kernels/cuda/product.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// Whether one kernel takes both: its format, and how many rows it is for.
bool are_of_one_kind(const MatmulArgs& a, const MatmulArgs& b) {
  return a.w->format == b.w->format && a.w->has_min == b.w->has_min &&
         a.w->num_cols == b.w->num_cols && (a.xq != nullptr) == (b.xq != nullptr) &&
         a.rounds_to_bf16 == b.rounds_to_bf16 && row_count(a.num_rows) == row_count(b.num_rows);
}

void multiply(const ProductList& products) {
  const MatmulArgs& first = *products.of[0];
  if (first.xq != nullptr) return matmul_int8(products);
  if (first.w->format == PackedFormat::kBF16 || first.w->format == PackedFormat::kF16) return matmul_bf16(products);
  matmul_float(products);
}

}  // namespace

void matmul(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (args.num_rows == 0 || panel_begin == panel_end) return;
  multiply({{&args}, 1, panel_begin, panel_end});
}

void matmul_group(const MatmulArgs* products, int count) {
  require(count <= kMostProducts, "a few products");
  bool is_done[kMostProducts] = {};
  for (int i = 0; i < count; ++i) {
    if (is_done[i] || products[i].num_rows == 0) continue;
    ProductList list = {{}, 0, 0, products[i].w->num_panels()};
    for (int j = i; j < count; ++j) {
      if (is_done[j] || !are_of_one_kind(products[i], products[j])) continue;
      is_done[j] = true;
      list.of[list.count++] = &products[j];
      list.panel_end = std::max(list.panel_end, products[j].w->num_panels());
    }
    multiply(list);
  }
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
