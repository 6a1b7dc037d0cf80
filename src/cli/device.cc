#include "cli/device.h"

#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "base/printable.h"
#include "cli/runtime.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/limits.h"
#include "plan/plan.h"

namespace larder {
namespace {

// Throws Error{kInvalidArgument} when the model is not for that device.
void check_device(const Device& device, const PlannedModel& planned) {
  if (planned.file.config.experts.num_experts > 0)
    throw_invalid("{}: layers with experts are not computed on a GPU, use --device cpu", planned.file.path);
  if (planned.file.config.latent.rank > 0)
    throw_invalid("{}: latent attention is not computed on a GPU, use --device cpu", planned.file.path);
  for (const GgufTensor& tensor : planned.file.files->gguf().tensors())
    if (tensor.type == GgmlType::kMXFP4 || tensor.type == GgmlType::kIQ4_NL || tensor.type == GgmlType::kIQ4_XS)
      throw_invalid("{}: tensor '{}': {} is not computed on a GPU, use --device cpu", planned.file.path,
                    printable(tensor.name), ggml_type_name(static_cast<std::uint32_t>(tensor.type)));
  if (planned.file.config.temperature.scale != 0)
    throw_invalid("{}: attention whose temperature goes by position is not computed on a GPU, use --device cpu",
                  planned.file.path);
  const int head_dim = planned.file.config.head_dim;
  if (head_dim > device.max_head_dim())
    throw_invalid("{}: heads of {} dimensions; a GPU takes {} at most, use --device cpu",
                  planned.file.path, head_dim, device.max_head_dim());
  const int num_heads = planned.file.config.num_heads;
  if (num_heads > static_cast<int>(kCudaMaxGrid))
    throw_invalid("{}: {} heads; a GPU takes {} at most, use --device cpu", planned.file.path,
                  num_heads, kCudaMaxGrid);
}

}  // namespace

int cuda_index(const std::string& text) {
  constexpr std::string_view kPrefix = "cuda:";
  if (!text.starts_with(kPrefix)) return -1;
  int index = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + kPrefix.size(), end, index);
  return error == std::errc() && stop == end ? index : -1;
}

std::string name_of_device(const RuntimeOptions& options) {
  return options.device == "auto" ? "cuda:0" : options.device;
}

std::int64_t plannable_bytes(const Device* device) {
  if (device == nullptr) return available_memory_bytes() + resident_memory_bytes();
  return static_cast<std::int64_t>(device->free_bytes()) + device->own_bytes();
}

std::unique_ptr<Device> open_device(const RuntimeOptions& options) {
  if (options.device == "cpu") return nullptr;
  if (options.device != "auto") return open_cuda_device(cuda_index(options.device));
  try {
    return open_cuda_device(cuda_index(name_of_device(options)));
  } catch (const Error& error) {
    std::fprintf(stderr, "Device: the CPU (%s)\n", error.what());
  }
  return nullptr;
}

PlannedModel plan_on(const RuntimeOptions& options, ThreadPool& pool,
                     std::unique_ptr<Device>& device) {
  PlannedModel planned;
  plan_on_into(planned, options, pool, device);
  return planned;
}

void plan_on_into(PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool,
                  std::unique_ptr<Device>& device) {
  if (device == nullptr) return plan_model_into(planned, options, pool);
  std::string why;
  try {
    plan_model_into(planned, options, pool, device.get());
    return check_device(*device, planned);
  } catch (const Error& error) {
    if (options.device != "auto") throw;
    why = error.what();
  }
  device.reset();
  planned = {};
  // What is wrong with the file or the options is so on the CPU as well, and thrown here.
  plan_model_into(planned, options, pool);
  std::fprintf(stderr, "Device: the CPU (%s)\n", why.c_str());
}

}  // namespace larder
