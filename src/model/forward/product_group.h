// Products of a layer's own kind, gathered and computed together.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/grouped_matmul.h"
#include "kernels/kernels.h"

namespace larder {

// Thread: one at a time. Allocates at construction alone. On a CPU.
class ProductGroup {
 public:
  // int8: matrices that the kernels want so take their input in 8 bits. max_products: of one run().
  ProductGroup(const KernelTable& kernels, ThreadPool& pool, int max_products, bool int8);

  bool wants_int8(const PackedMatrix& matrix) const;

  // Rows [first_row, first_row + num_rows) of an input: x, and xq where a matrix wants that.
  struct Input {
    const float* x = nullptr;
    QuantizedRows xq = {};
    int first_row = 0;
    int num_rows = 0;
  };
  struct Output {
    float* y = nullptr;           // [num_rows, ldy]
    std::int64_t ldy = 0;         // 0: w's rows
    const float* bias = nullptr;  // [w's rows] or null
  };
  // y = input times w, and bias. w must live until run().
  void add(const PackedMatrix& w, const Input& input, const Output& output);
  // All that were added.
  void run();

 private:
  const KernelTable& kernels_;
  const bool int8_;
  GroupedMatmul matmul_;
  std::vector<MatmulArgs> products_;
  std::vector<QuantizedRows> inputs_;
};

}  // namespace larder
