// A product by cuBLASLt, where the machine has it, to measure ours against.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/device.h"

namespace larder {

// y = w x: w [rows, cols] and x [n, cols] of BF16, y [n, rows] of FP32, in tensor cores.
class BlasProduct {
 public:
  // num_matrices: that the calls take in turn.
  BlasProduct(Device& device, std::size_t num_matrices, int rows, int cols, int n);
  ~BlasProduct();
  BlasProduct(const BlasProduct&) = delete;
  BlasProduct& operator=(const BlasProduct&) = delete;

  // Why there is none; then run() must not be called.
  const std::string& error() const { return error_; }
  void run();

 private:
  struct Library;
  static const Library& library();
  std::string describe_product(int rows, int cols, int n);
  int multiply();

  std::string error_;
  DeviceBuffer weights_, x_, y_, workspace_;
  std::size_t matrix_bytes_;
  std::size_t num_matrices_;
  std::size_t next_ = 0;
  void* handle_ = nullptr;
  void* product_ = nullptr;
  void* layouts_[3] = {};  // of w, x, y
};

}  // namespace larder
