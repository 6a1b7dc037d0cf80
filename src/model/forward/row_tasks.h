// Work on single rows of a batch, shared out over threads where there are enough of them.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"

namespace larder {

// Fewer rows are not worth a fork and join.
inline constexpr int kMinSharedRows = 16;
inline constexpr int kRowsPerTask = 8;

// function(row_begin, row_end) over all rows, in pieces where threads share them.
template <class Function>
void for_row_tasks(ThreadPool& pool, int num_rows, Function&& function) {
  if (num_rows < kMinSharedRows || pool.num_threads() == 1) return function(0, num_rows);
  const int num_tasks = (num_rows + kRowsPerTask - 1) / kRowsPerTask;
  pool.parallel_for_near(num_tasks, [&](int task, int) {
    const int begin = task * kRowsPerTask;
    function(begin, std::min(begin + kRowsPerTask, num_rows));
  });
}

}  // namespace larder
