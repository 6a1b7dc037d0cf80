#include "tests/gpu/blas.h"

#include <dlfcn.h>

#include <vector>

#include "base/check.h"

namespace larder {
namespace {

// Of cublasLt.h, cublas_api.h and library_types.h, which need not be there; they are the same in
// versions 11 to 13.
constexpr int kComputeF32 = 68;
constexpr int kTypeF32 = 0;
constexpr int kTypeBF16 = 14;
constexpr int kTransposeA = 3;  // an attribute of a product
constexpr int kTranspose = 1;

constexpr std::size_t kWorkspaceBytes = 32 << 20;

// Between 1/2 and 1: products of zeros take less of a GPU's power.
DeviceBuffer some_numbers(Device& device, std::size_t count, std::size_t times = 1) {
  std::vector<std::uint16_t> values(count);
  std::uint32_t state = 1;
  for (std::uint16_t& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<std::uint16_t>(0x3F00U | (state >> 25));
  }
  DeviceBuffer buffer(&device, times * 2 * count);
  for (std::size_t i = 0; i < times; ++i)
    device.copy_in(buffer.data() + i * 2 * count, reinterpret_cast<const std::byte*>(values.data()),
                   2 * count);
  return buffer;
}

}  // namespace

struct BlasProduct::Library {
  std::string error;
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*create_product)(void** product, int compute, int scale_type) = nullptr;
  int (*destroy_product)(void* product) = nullptr;
  int (*set_attribute)(void* product, int attribute, const void* value, std::size_t size) = nullptr;
  int (*create_layout)(void** layout, int type, std::uint64_t rows, std::uint64_t cols,
                       std::int64_t ld) = nullptr;
  int (*destroy_layout)(void* layout) = nullptr;
  int (*multiply)(void* handle, void* product, const void* alpha, const void* a, void* a_layout,
                  const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                  void* d, void* d_layout, const void* algorithm, void* workspace,
                  std::size_t workspace_bytes, void* stream) = nullptr;

  Library() {
    void* library = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"})
      if (library == nullptr) library = dlopen(name, RTLD_NOW);
    if (library == nullptr) {
      error = "libcublasLt.so.13, .12, .11 cannot be loaded";
      return;
    }
    const auto load = [&]<class Function>(Function& function, const char* name) {
      function = reinterpret_cast<Function>(dlsym(library, name));
      if (function == nullptr) error = std::string("it lacks ") + name;
    };
    load(create, "cublasLtCreate");
    load(destroy, "cublasLtDestroy");
    load(create_product, "cublasLtMatmulDescCreate");
    load(destroy_product, "cublasLtMatmulDescDestroy");
    load(set_attribute, "cublasLtMatmulDescSetAttribute");
    load(create_layout, "cublasLtMatrixLayoutCreate");
    load(destroy_layout, "cublasLtMatrixLayoutDestroy");
    load(multiply, "cublasLtMatmul");
  }
};

const BlasProduct::Library& BlasProduct::library() {
  static const Library it;
  return it;
}

BlasProduct::BlasProduct(Device& device, std::size_t num_matrices, int rows, int cols, int n)
    : error_(library().error),
      matrix_bytes_(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols) * 2),
      num_matrices_(num_matrices) {
  if (!error_.empty()) return;
  weights_ = some_numbers(device, matrix_bytes_ / 2, num_matrices);
  x_ = some_numbers(device, static_cast<std::size_t>(n * cols));
  y_ = DeviceBuffer(&device, static_cast<std::size_t>(n * rows) * sizeof(float));
  workspace_ = DeviceBuffer(&device, kWorkspaceBytes);
  error_ = describe_product(rows, cols, n);
  if (!error_.empty()) return;
  const int status = multiply();  // also finds an algorithm
  if (status != 0) error_ = "cublasLtMatmul gives " + std::to_string(status);
}

BlasProduct::~BlasProduct() {
  for (void* layout : layouts_)
    if (layout != nullptr) library().destroy_layout(layout);
  if (product_ != nullptr) library().destroy_product(product_);
  if (handle_ != nullptr) library().destroy(handle_);
}

// What went wrong. Its matrices are by columns: w is cols x rows there and to be transposed, x cols x
// n, y rows x n.
std::string BlasProduct::describe_product(int rows, int cols, int n) {
  const Library& blas = library();
  const auto size = [](int value) { return static_cast<std::uint64_t>(value); };
  int status = blas.create(&handle_);
  if (status == 0) status = blas.create_product(&product_, kComputeF32, kTypeF32);
  if (status == 0)
    status = blas.set_attribute(product_, kTransposeA, &kTranspose, sizeof(kTranspose));
  if (status == 0) status = blas.create_layout(&layouts_[0], kTypeBF16, size(cols), size(rows), cols);
  if (status == 0) status = blas.create_layout(&layouts_[1], kTypeBF16, size(cols), size(n), cols);
  if (status == 0) status = blas.create_layout(&layouts_[2], kTypeF32, size(rows), size(n), rows);
  return status == 0 ? "" : "its status is " + std::to_string(status);
}

int BlasProduct::multiply() {
  const float one = 1;
  const float zero = 0;
  const std::byte* w = weights_.data() + next_++ % num_matrices_ * matrix_bytes_;
  return library().multiply(handle_, product_, &one, w, layouts_[0], x_.data(), layouts_[1], &zero,
                            y_.data(), layouts_[2], y_.data(), layouts_[2], nullptr,
                            workspace_.data(), kWorkspaceBytes, nullptr);
}

void BlasProduct::run() {
  const int status = multiply();
  CHECK(status == 0, status);
}

}  // namespace larder
