// Products with different numbers of rows in one fork and join: those of experts, each of which has
// its own rows of a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace larder {

// Cuts products into tasks of about the same work, beside the products' own ends. Which thread takes what decides no bit.
// Thread: one at a time. Allocates at construction alone.
class GroupedMatmul {
 public:
  // max_products: of one call.
  GroupedMatmul(ThreadPool& pool, int max_products);
  // The products do not depend on one another; those without rows are passed over. On a CPU.
  void run(const KernelTable& kernels, std::span<const MatmulArgs> products);

 private:
  struct Task {
    int product = 0;
    int panel_begin = 0;
    int panel_end = 0;
  };
  void list_tasks(std::span<const MatmulArgs> products);

  ThreadPool& pool_;
  std::vector<Task> tasks_;
};

}  // namespace larder
