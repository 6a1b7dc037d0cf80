#include "kernels/grouped_matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/matmul_tasks.h"

namespace larder {
namespace {

// Below so many rows a product lasts as long as its weights take to read.
constexpr int kRowsAtMemorySpeed = 4;

std::int64_t panel_work(const MatmulArgs& product) {
  return product.w->panel_stride_bytes * std::max(product.num_rows, kRowsAtMemorySpeed);
}

std::int64_t least_panels(const MatmulArgs& product) {
  if (product.num_rows >= kManyRows) return kMinPanelsOfManyRows;
  return std::max<std::int64_t>(1, kMinTaskBytes / product.w->panel_stride_bytes);
}

}  // namespace

GroupedMatmul::GroupedMatmul(ThreadPool& pool, int max_products) : pool_(pool) {
  tasks_.reserve(static_cast<std::size_t>(max_products + pool.num_threads() * kMatmulTasksPerThread));
}

void GroupedMatmul::list_tasks(std::span<const MatmulArgs> products) {
  std::int64_t work = 0;
  for (const MatmulArgs& product : products)
    if (product.num_rows > 0) work += panel_work(product) * product.w->num_panels();
  const std::int64_t task_work = work / (pool_.num_threads() * kMatmulTasksPerThread) + 1;
  tasks_.clear();
  for (std::size_t i = 0; i < products.size(); ++i) {
    const MatmulArgs& product = products[i];
    if (product.num_rows == 0) continue;
    // An even number: kernels take two panels at a time.
    const std::int64_t panels = std::max(least_panels(product), (task_work + panel_work(product) - 1) / panel_work(product));
    const int step = static_cast<int>(std::min<std::int64_t>(panels + panels % 2, product.w->num_panels()));
    for (int begin = 0; begin < product.w->num_panels(); begin += step)
      tasks_.push_back({static_cast<int>(i), begin, std::min(begin + step, product.w->num_panels())});
  }
  CHECK(tasks_.size() <= tasks_.capacity(), tasks_.size());
}

void GroupedMatmul::run(const KernelTable& kernels, std::span<const MatmulArgs> products) {
  CHECK(!kernels.is_device(), kernels.name);
  list_tasks(products);
  pool_.parallel_for_near(static_cast<int>(tasks_.size()), [&](int i, int) {
    const Task& task = tasks_[static_cast<std::size_t>(i)];
    kernels.matmul(products[static_cast<std::size_t>(task.product)], task.panel_begin, task.panel_end);
  });
}

}  // namespace larder
