#include "model/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::size_t kMaxKeyBytes = 65535;   // by the specification
constexpr std::size_t kMaxTensorNameBytes = 64;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1 << 16;
constexpr int kMaxArrayDepth = 4;
// The shortest entries: a key of one byte, a type and a value of one byte; a name of one byte, one
// dimension, a type and an offset.
constexpr std::uint64_t kMinValueBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
// What is said where the file ends before what it tells of does.
constexpr std::string_view kCutOff = ": it is cut off or damaged, fetch it again";

static_assert(std::endian::native == std::endian::little,
              "values are read as they lie in the file");

// Bytes of a scalar; 0 for strings and arrays.
std::size_t scalar_size_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

template <class T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// Reads forwards; every read is checked against what is left.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t remaining() const { return bytes_.size() - position_; }
  void set_field(std::string field) { field_ = std::move(field); }

  [[noreturn]] void fail(const std::string& reason) const {
    throw_invalid("GGUF: {}: {} (at byte {})", field_, reason, position_);
  }

  std::span<const std::byte> take(std::uint64_t size_bytes, const char* what) {
    if (size_bytes > remaining())
      fail(fmt::format("{} takes {} bytes, but the file has only {} more{}", what, size_bytes, remaining(), kCutOff));
    const auto taken = bytes_.subspan(position_, static_cast<std::size_t>(size_bytes));
    position_ += taken.size();
    return taken;
  }

  template <class T>
  T read(const char* what) {
    return load<T>(take(sizeof(T), what).data());
  }

  std::string_view read_string(const char* what) {
    const auto text = take(read<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  GgufType read_type(const char* what) {
    const auto type = read<std::uint32_t>(what);
    if (type > static_cast<std::uint32_t>(GgufType::kFloat64))
      fail(fmt::format("{} {} is unknown", what, type));
    return static_cast<GgufType>(type);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  std::string field_ = "header";
};

// Steps over `count` elements, checking each.
void skip_elements(Cursor& cursor, GgufType type, std::uint64_t count, int depth) {
  if (const std::size_t size = scalar_size_bytes(type); size > 0) {
    if (count > cursor.remaining() / size)
      cursor.fail(fmt::format("array of {} elements is longer than the file{}", count, kCutOff));
    const auto elements = cursor.take(count * size, "array");
    const auto is_not_bool = [](std::byte value) { return value > std::byte{1}; };
    if (type == GgufType::kBool && std::ranges::any_of(elements, is_not_bool))
      cursor.fail("a bool is neither 0 nor 1");
    return;
  }
  if (type == GgufType::kString) {
    if (count > cursor.remaining() / sizeof(std::uint64_t))
      cursor.fail(fmt::format("array of {} strings is longer than the file{}", count, kCutOff));
    for (std::uint64_t i = 0; i < count; ++i) cursor.read_string("string");
    return;
  }
  if (depth >= kMaxArrayDepth) cursor.fail("arrays are nested too deeply");
  constexpr std::size_t kHeaderBytes = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  if (count > cursor.remaining() / kHeaderBytes)
    cursor.fail(fmt::format("array of {} arrays is longer than the file{}", count, kCutOff));
  for (std::uint64_t i = 0; i < count; ++i) {
    const GgufType element_type = cursor.read_type("element type");
    skip_elements(cursor, element_type, cursor.read<std::uint64_t>("array length"), depth + 1);
  }
}

GgufValue read_value(Cursor& cursor, std::span<const std::byte> file) {
  GgufValue value;
  value.type = cursor.read_type("value type");
  if (value.type == GgufType::kString) {
    value.bytes = std::as_bytes(std::span(cursor.read_string("string")));
    return value;
  }
  value.element_type = value.type;
  if (value.type == GgufType::kArray) {
    value.element_type = cursor.read_type("element type");
    value.count = cursor.read<std::uint64_t>("array length");
  }
  const std::size_t begin = cursor.position();
  skip_elements(cursor, value.element_type, value.count, 1);
  value.bytes = file.subspan(begin, cursor.position() - begin);
  return value;
}

// Bytes of a tensor's data; refuses what overflows.
std::uint64_t tensor_size_bytes(const Cursor& cursor, const GgufTensor& tensor,
                                const GgmlTypeTraits& traits) {
  std::uint64_t num_values = 1;
  for (const std::int64_t dim : tensor.dims)
    if (__builtin_mul_overflow(num_values, static_cast<std::uint64_t>(dim), &num_values) ||
        num_values > INT64_MAX)
      cursor.fail("the dimensions' product overflows");
  const auto block_size = static_cast<std::uint64_t>(traits.block_size);
  if (static_cast<std::uint64_t>(tensor.dims[0]) % block_size != 0)
    cursor.fail(fmt::format("rows of {} values are not a multiple of {}'s block of {}",
                            tensor.dims[0], traits.name, block_size));
  std::uint64_t size_bytes = 0;
  if (__builtin_mul_overflow(num_values / block_size,
                             static_cast<std::uint64_t>(traits.block_size_bytes), &size_bytes) ||
      size_bytes > INT64_MAX)
    cursor.fail("the size in bytes overflows");
  return size_bytes;
}

struct TensorInfo {
  GgufTensor tensor;
  std::uint64_t offset = 0;  // from the start of the data section
  std::uint64_t size_bytes = 0;
};

TensorInfo read_tensor_info(Cursor& cursor, std::uint64_t alignment) {
  TensorInfo info;
  GgufTensor& tensor = info.tensor;
  tensor.name = cursor.read_string("tensor name");
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes)
    cursor.fail(fmt::format("a name of {} bytes; 1 to {} are allowed", tensor.name.size(),
                            kMaxTensorNameBytes));
  cursor.set_field(fmt::format("tensor '{}'", printable(tensor.name)));
  const auto num_dims = cursor.read<std::uint32_t>("number of dimensions");
  if (num_dims < 1 || num_dims > tensor.dims.size())
    cursor.fail(fmt::format("{} dimensions; 1 to {} are allowed", num_dims, tensor.dims.size()));
  tensor.num_dims = static_cast<int>(num_dims);
  for (std::uint32_t i = 0; i < num_dims; ++i) {
    const auto dim = cursor.read<std::uint64_t>("dimension");
    if (dim < 1 || dim > INT64_MAX) cursor.fail(fmt::format("dimension {} is {}", i, dim));
    tensor.dims[i] = static_cast<std::int64_t>(dim);
  }
  const auto type = cursor.read<std::uint32_t>("type");
  const auto traits = ggml_type_traits(type);
  if (!traits)
    cursor.fail(fmt::format("{} is not one of the types that Larder reads, which are F32, F16, BF16, Q4_0 to Q8_0, Q2_K to "
                            "Q6_K, IQ4_NL, IQ4_XS and MXFP4: take a file of another quantization, such as Q4_K_M",
                            ggml_type_name(type)));
  tensor.type = static_cast<GgmlType>(type);
  info.size_bytes = tensor_size_bytes(cursor, tensor, *traits);
  info.offset = cursor.read<std::uint64_t>("offset");
  if (info.offset % alignment != 0)
    cursor.fail(
        fmt::format("offset {} is not a multiple of the alignment {}", info.offset, alignment));
  return info;
}

// Where all tensors' data ends; the most that a number holds where there is no such place.
std::uint64_t end_of_tensors(const std::vector<TensorInfo>& infos) {
  std::uint64_t last = 0;
  for (const TensorInfo& info : infos) {
    std::uint64_t end = 0;
    last = std::max(last, __builtin_add_overflow(info.offset, info.size_bytes, &end) ? UINT64_MAX : end);
  }
  return last;
}

// Gives every tensor its bytes: inside the file, which has `data` behind `data_begin`, and no byte to two tensors.
void place_tensors(std::vector<TensorInfo>& infos, std::span<const std::byte> data, std::size_t data_begin) {
  for (TensorInfo& info : infos) {
    if (info.offset > data.size() || info.size_bytes > data.size() - info.offset) {
      std::uint64_t whole = 0;
      if (__builtin_add_overflow(end_of_tensors(infos), data_begin, &whole))
        throw_invalid("GGUF: tensor '{}': {} bytes at offset {} lie beyond any file", printable(info.tensor.name),
                      info.size_bytes, info.offset);
      throw_invalid("GGUF: tensor '{}' lies beyond the file's end: the file is cut off ({} of at least {} bytes), fetch it again",
                    printable(info.tensor.name), data_begin + data.size(), whole);
    }
    info.tensor.data = data.subspan(static_cast<std::size_t>(info.offset),
                                    static_cast<std::size_t>(info.size_bytes));
  }
  std::vector<const TensorInfo*> by_offset;
  for (const TensorInfo& info : infos) by_offset.push_back(&info);
  std::ranges::sort(by_offset, {}, &TensorInfo::offset);
  for (std::size_t i = 1; i < by_offset.size(); ++i)
    if (by_offset[i]->offset < by_offset[i - 1]->offset + by_offset[i - 1]->size_bytes)
      throw_invalid("GGUF: tensors '{}' and '{}' overlap", printable(by_offset[i - 1]->tensor.name),
                    printable(by_offset[i]->tensor.name));
}

struct Header {
  std::uint32_t version = 0;
  std::uint64_t num_tensors = 0;
  std::uint64_t num_values = 0;
};

Header read_header(Cursor& cursor) {
  if (cursor.remaining() == 0) throw_invalid("GGUF: the file is empty: fetch it again");
  if (cursor.read<std::uint32_t>("magic") != kMagic) cursor.fail("this is not a GGUF file");
  Header header;
  header.version = cursor.read<std::uint32_t>("version");
  if (const std::uint32_t swapped = __builtin_bswap32(header.version); swapped == 2 || swapped == 3)
    cursor.fail("big-endian files are not supported");
  if (header.version != 2 && header.version != 3)
    cursor.fail(fmt::format("version {} is not supported; 2 and 3 are", header.version));
  header.num_tensors = cursor.read<std::uint64_t>("tensor count");
  header.num_values = cursor.read<std::uint64_t>("metadata count");
  if (header.num_tensors > cursor.remaining() / kMinTensorBytes)
    cursor.fail(fmt::format("tensor count {} is more than the file can hold{}", header.num_tensors, kCutOff));
  if (header.num_values > cursor.remaining() / kMinValueBytes)
    cursor.fail(fmt::format("metadata count {} is more than the file can hold{}", header.num_values, kCutOff));
  return header;
}

std::uint64_t checked_alignment(const GgufFile& gguf) {
  const std::uint64_t alignment = gguf.find_uint("general.alignment").value_or(kDefaultAlignment);
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment)
    throw_invalid("GGUF: general.alignment: {} is not a power of two from 8 to {}", alignment,
                  kMaxAlignment);
  return alignment;
}

[[noreturn]] void fail_type(std::string_view key, const char* expected) {
  throw_invalid("GGUF: {}: the value is not {}", printable(key), expected);
}

// A scalar or element of an integer type or bool as a signed number; nullopt if it is of another
// type or does not fit.
std::optional<std::int64_t> load_int(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kBool:
      return load<std::uint8_t>(data);
    case GgufType::kInt8:
      return load<std::int8_t>(data);
    case GgufType::kUint16:
      return load<std::uint16_t>(data);
    case GgufType::kInt16:
      return load<std::int16_t>(data);
    case GgufType::kUint32:
      return load<std::uint32_t>(data);
    case GgufType::kInt32:
      return load<std::int32_t>(data);
    case GgufType::kInt64:
      return load<std::int64_t>(data);
    case GgufType::kUint64: {
      const auto value = load<std::uint64_t>(data);
      if (value > INT64_MAX) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

GgufFile::GgufFile(std::span<const std::byte> bytes) {
  Cursor cursor(bytes);
  const Header header = read_header(cursor);
  for (std::uint64_t i = 0; i < header.num_values; ++i) {
    cursor.set_field(fmt::format("metadata {}", i));
    const std::string_view key = cursor.read_string("key");
    if (key.empty() || key.size() > kMaxKeyBytes)
      cursor.fail(fmt::format("a key of {} bytes; 1 to {} are allowed", key.size(), kMaxKeyBytes));
    cursor.set_field(printable(key));
    if (!values_.emplace(key, read_value(cursor, bytes)).second)
      cursor.fail("the key stands twice");
  }

  const std::uint64_t alignment = checked_alignment(*this);
  std::vector<TensorInfo> infos;
  for (std::uint64_t i = 0; i < header.num_tensors; ++i) {
    cursor.set_field(fmt::format("tensor {}", i));
    infos.push_back(read_tensor_info(cursor, alignment));
    if (!tensor_index_.emplace(infos.back().tensor.name, infos.size() - 1).second)
      cursor.fail("the name stands twice");
  }
  const std::size_t padding = (alignment - cursor.position() % alignment) % alignment;
  const std::size_t data_begin = cursor.position() + std::min(padding, cursor.remaining());
  place_tensors(infos, bytes.subspan(data_begin), data_begin);
  tensors_.reserve(infos.size());
  for (const TensorInfo& info : infos) tensors_.push_back(info.tensor);
}

void GgufFile::add_tensors_of(const GgufFile& piece) {
  for (const GgufTensor& tensor : piece.tensors_) add_tensor(tensor);
}

void GgufFile::add_tensor(GgufTensor tensor) {
  if (!tensor_index_.emplace(tensor.name, tensors_.size()).second)
    throw_invalid("GGUF: {}: the name stands in another piece, too", printable(tensor.name));
  tensors_.push_back(std::move(tensor));
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string_view> GgufFile::keys_below(std::string_view prefix) const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_)
    if (key.starts_with(prefix)) keys.push_back(key);
  std::ranges::sort(keys);
  return keys;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

std::optional<std::uint64_t> GgufFile::find_uint(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type == GgufType::kBool) fail_type(key, "an integer");
  const auto number = load_int(value->type, value->bytes.data());
  if (!number || *number < 0) fail_type(key, "an integer of 0 or more");
  return static_cast<std::uint64_t>(*number);
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type == GgufType::kFloat32) return load<float>(value->bytes.data());
  if (value->type == GgufType::kFloat64) return load<double>(value->bytes.data());
  fail_type(key, "a floating-point number");
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::kBool) fail_type(key, "a bool");
  return value->bytes[0] != std::byte{0};
}

std::optional<std::string_view> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::kString) fail_type(key, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

std::optional<std::vector<std::string_view>> GgufFile::find_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString)
    fail_type(key, "an array of strings");
  std::vector<std::string_view> strings;
  strings.reserve(value->count);
  Cursor cursor(value->bytes);
  for (std::uint64_t i = 0; i < value->count; ++i) strings.push_back(cursor.read_string("string"));
  return strings;
}

std::optional<std::vector<std::int64_t>> GgufFile::find_ints(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  const std::size_t size = scalar_size_bytes(value->element_type);
  if (value->type != GgufType::kArray || size == 0) fail_type(key, "an array of integers");
  std::vector<std::int64_t> numbers;
  numbers.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto number = load_int(value->element_type, value->bytes.data() + i * size);
    if (!number) fail_type(key, "an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<std::vector<float>> GgufFile::find_floats(std::string_view key) const {
  const GgufValue* value = find(key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::kArray || value->element_type != GgufType::kFloat32)
    fail_type(key, "an array of floats");
  std::vector<float> numbers(value->count);
  if (!numbers.empty()) std::memcpy(numbers.data(), value->bytes.data(), value->bytes.size());
  return numbers;
}

}  // namespace larder
