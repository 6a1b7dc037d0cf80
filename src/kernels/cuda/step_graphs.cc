#include "kernels/cuda/step_graphs.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <string_view>

#include "base/check.h"

namespace larder::cuda {

bool kernels_overlap();
void require_launched(int error);

namespace {

// A step's kernels take about a kilobyte each of the device's memory.
constexpr std::size_t kMostSteps = 48;
// Of them, that came once so far: they push out each other, not those that come again.
constexpr std::ptrdiff_t kNewSteps = 8;
constexpr std::size_t kAlignment = 16;

// What stands in a log before a kernel's arguments. No padding: logs are compared byte by byte.
struct Entry {
  std::uint64_t kernel;
  std::uint32_t grid[3];
  std::int32_t num_threads;
  std::int32_t shared_bytes;
  std::int32_t num_args;
};
static_assert(sizeof(Entry) == 32);

std::size_t rounded_up(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

void append(std::vector<std::byte>& log, const void* bytes, std::size_t size) {
  const std::size_t at = log.size();
  log.resize(at + rounded_up(size));
  std::memcpy(log.data() + at, bytes, size);
}

// Starts a log's kernels.
cudaError_t start_all(const std::vector<std::byte>& log, cudaStream_t stream) {
  std::vector<const void*> args;
  std::size_t at = 0;
  while (at < log.size()) {
    Entry entry;
    std::memcpy(&entry, log.data() + at, sizeof(entry));
    at += sizeof(entry);
    args.clear();
    for (int i = 0; i < entry.num_args; ++i) {
      std::uint64_t size = 0;
      std::memcpy(&size, log.data() + at, sizeof(size));
      args.push_back(log.data() + at + kAlignment);
      at += kAlignment + rounded_up(size);
    }
    const cudaError_t error =
        start_now({reinterpret_cast<const void*>(entry.kernel), dim3(entry.grid[0], entry.grid[1], entry.grid[2]),
                   entry.num_threads, entry.shared_bytes, args.data(), nullptr, entry.num_args},
                  stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Any other error is a bug.
bool has_memory(cudaError_t error) {
  if (error != cudaErrorMemoryAllocation) {
    require_launched(error);
    return true;
  }
  static_cast<void>(cudaGetLastError());  // forgets it
  return false;
}

}  // namespace

cudaError_t start_now(const KernelStart& start, cudaStream_t stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = start.grid;
  config.blockDim = dim3(static_cast<unsigned>(start.num_threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(start.shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = kernels_overlap() ? 1 : 0;
  return cudaLaunchKernelExC(&config, start.kernel, const_cast<void**>(start.args));
}

StepGraphs::~StepGraphs() {
  for (Step& step : steps_) release(step);
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

void StepGraphs::release(Step& step) {
  if (step.graph != nullptr) static_cast<void>(cudaGraphExecDestroy(step.graph));
  step.graph = nullptr;
}

void StepGraphs::begin() {
  CHECK(!recording_, "a step within a step");
  recording_ = true;
  log_.clear();
}

void StepGraphs::add(const KernelStart& start) {
  const Entry entry = {reinterpret_cast<std::uint64_t>(start.kernel),
                       {start.grid.x, start.grid.y, start.grid.z},
                       start.num_threads,
                       start.shared_bytes,
                       start.num_args};
  append(log_, &entry, sizeof(entry));
  for (int i = 0; i < start.num_args; ++i) {
    const std::uint64_t size = start.arg_sizes[i];
    append(log_, &size, sizeof(size));
    append(log_, start.args[i], start.arg_sizes[i]);
  }
}

StepGraphs::Step* StepGraphs::find(std::size_t hash) {
  for (auto step = steps_.begin(); step != steps_.end(); ++step) {
    if (step->hash != hash || step->log != log_) continue;
    steps_.splice(steps_.begin(), steps_, step);
    return &steps_.front();
  }
  return nullptr;
}

void StepGraphs::forget_one() {
  const auto came_once = [](const Step& step) { return step.graph == nullptr; };
  const bool new_one = std::ranges::count_if(steps_, came_once) > kNewSteps;
  const auto last = std::find_if(steps_.rbegin(), steps_.rend(),
                                 [&](const Step& step) { return came_once(step) == new_one; });
  release(*last);
  steps_.erase(std::next(last).base());
}

cudaError_t StepGraphs::open() { return stream_ == nullptr ? cudaStreamCreate(&stream_) : cudaSuccess; }

// False = there was no memory for it.
bool StepGraphs::capture(Step& step, cudaGraph_t& graph) {
  if (!has_memory(open())) return false;
  if (!has_memory(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal))) return false;
  const cudaError_t started = start_all(step.log, stream_);
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);  // in any case
  return has_memory(started) && has_memory(ended);
}

void StepGraphs::make_graph(Step& step) {
  cudaGraph_t graph = nullptr;
  step.has_failed = !capture(step, graph) || !has_memory(cudaGraphInstantiate(&step.graph, graph, 0));
  if (step.has_failed) step.graph = nullptr;
  if (graph != nullptr) require_launched(cudaGraphDestroy(graph));
}

// Its first start takes it to the GPU, which may lack the memory, too. Then nothing has been started.
bool StepGraphs::start_graph(Step& step) {
  if (step.graph == nullptr) return false;
  if (has_memory(cudaGraphLaunch(step.graph, nullptr))) return true;
  release(step);
  step.has_failed = true;
  return false;
}

void StepGraphs::end() {
  CHECK(recording_, "no step begun");
  recording_ = false;
  if (log_.empty()) return;
  const std::size_t hash = std::hash<std::string_view>()(
      {reinterpret_cast<const char*>(log_.data()), log_.size()});
  Step* step = find(hash);
  if (step == nullptr) {
    if (steps_.size() == kMostSteps) forget_one();
    try {
      steps_.push_front({log_, hash});
    } catch (const std::bad_alloc&) {
      // It is not known when it comes again.
    }
    return require_launched(start_all(log_, nullptr));
  }
  if (step->graph == nullptr && !step->has_failed) make_graph(*step);
  if (!start_graph(*step)) require_launched(start_all(step->log, nullptr));
}

}  // namespace larder::cuda
