// Starts the kernels of a step at once: a launch costs the host some microseconds, a kernel of a graph
// (CUDA graphs) a fraction of one.
//
// Between begin() and end() kernels are written down; end() starts them. Steps that start the same
// kernels with the same arguments are one graph from their second time on: a decoding step tells its
// tokens, positions and block tables in memory that stays where it is.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <list>
#include <vector>

namespace larder::cuda {

// A kernel and its arguments; `args` as cudaLaunchKernel has them.
struct KernelStart {
  const void* kernel;
  dim3 grid;
  int num_threads;
  int shared_bytes;
  const void* const* args;
  const std::size_t* arg_sizes;
  int num_args;
};

// Starts it behind what stream has; see kernels_overlap().
cudaError_t start_now(const KernelStart& start, cudaStream_t stream);

// Thread: one at a time, and no other one starts kernels between begin() and end().
class StepGraphs {
 public:
  StepGraphs() = default;
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Takes early what making a graph needs; else that is taken with the first one.
  cudaError_t open();

  void begin();
  void add(const KernelStart& start);
  // Throws nothing: an error of the device is a bug. Where memory for a graph is lacking, it does without.
  void end();

  int num_graphs() const { return static_cast<int>(steps_.size()); }

 private:
  struct Step {
    std::vector<std::byte> log;
    std::size_t hash = 0;
    cudaGraphExec_t graph = nullptr;
    bool has_failed = false;
  };

  Step* find(std::size_t hash);
  void make_graph(Step& step);
  bool capture(Step& step, cudaGraph_t& graph);
  bool start_graph(Step& step);
  static void release(Step& step);
  void forget_one();

  bool recording_ = false;
  std::vector<std::byte> log_;  // of this step
  std::list<Step> steps_;       // the last used first
  cudaStream_t stream_ = nullptr;
};

}  // namespace larder::cuda
