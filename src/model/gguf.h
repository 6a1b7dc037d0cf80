// Reader of GGUF files, versions 2 and 3, little-endian.
//
// Any bytes may come in: whatever is malformed is refused with the field and the reason before
// memory is taken for it. Values and tensors are views into the file's bytes, so parsing allocates
// only the two indexes, whose sizes the file's own length bounds. Source: the published GGUF
// specification.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/ggml_types.h"

namespace larder {

enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// One metadata value, already checked. bytes: a scalar's bytes, a string's text, an array's
// elements.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of an array
  std::uint64_t count = 1;                   // elements of an array
  std::span<const std::byte> bytes;
};

struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::kF32;
  // Innermost first, as in the file: a matrix is [num_cols, num_rows]. Unused dimensions are 1, so
  // that num_cols() * num_rows() is the number of values.
  std::array<std::int64_t, 4> dims = {1, 1, 1, 1};
  int num_dims = 0;
  std::span<const std::byte> data;
  // Where the matrices of the last dimension lie apart, each one's bytes, of MXFP4 two for each (Mxfp4Parts); data is
  // empty then. No GGUF file has such tensors: see add_tensor().
  std::vector<std::span<const std::byte>> parts = {};

  std::int64_t num_cols() const { return dims[0]; }
  std::int64_t num_rows() const { return dims[1] * dims[2] * dims[3]; }
};

// Immutable after construction. Thread: any.
class GgufFile {
 public:
  // bytes must outlive the object. Throws Error{kInvalidArgument}.
  explicit GgufFile(std::span<const std::byte> bytes);

  // Takes another piece's tensors as well; its bytes must outlive this object, too. Throws
  // Error{kInvalidArgument} where both have one of a name.
  void add_tensors_of(const GgufFile& piece);
  // One that lies elsewhere, with its name; both must outlive this object. Its type, dimensions and bytes must agree.
  // Throws as above.
  void add_tensor(GgufTensor tensor);

  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  // nullptr when absent.
  const GgufValue* find(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;
  // Those that begin so, in order.
  std::vector<std::string_view> keys_below(std::string_view prefix) const;

  // nullopt when absent. They throw Error{kInvalidArgument} naming the key when the value has
  // another type; any integer type serves as an integer, if it is not negative.
  std::optional<std::uint64_t> find_uint(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  // Arrays; nullopt when absent. Integers and bools serve as integers.
  std::optional<std::vector<std::string_view>> find_strings(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> find_ints(std::string_view key) const;
  std::optional<std::vector<float>> find_floats(std::string_view key) const;

 private:
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;
};

}  // namespace larder
