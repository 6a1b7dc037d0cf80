// Writes GGUF bytes: what a folder of another format says, and, each part open to being made wrong, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf.h"

namespace larder {

// A header, metadata entries and tensor infos as raw bytes; build() joins them.
class GgufBuilder {
 public:
  std::uint32_t magic = 0x46554747;
  std::uint32_t version = 3;
  // Added to the true counts.
  std::uint64_t extra_values = 0;
  std::uint64_t extra_tensors = 0;
  std::size_t data_alignment = 32;

  template <class T>
  GgufBuilder& add(std::string_view key, GgufType type, T value) {
    begin_value(key, type);
    put(values_, value);
    return *this;
  }
  GgufBuilder& add_uint(std::string_view key, std::uint32_t value) {
    return add(key, GgufType::kUint32, value);
  }
  GgufBuilder& add_float(std::string_view key, float value) {
    return add(key, GgufType::kFloat32, value);
  }
  GgufBuilder& add_bool(std::string_view key, bool value) {
    return add(key, GgufType::kBool, static_cast<std::uint8_t>(value));
  }
  GgufBuilder& add_string(std::string_view key, std::string_view value) {
    begin_value(key, GgufType::kString);
    put_string(values_, value);
    return *this;
  }
  template <class T>
  GgufBuilder& add_array(std::string_view key, GgufType type, const std::vector<T>& values) {
    begin_array(key, type, values.size());
    for (const T& value : values) {
      if constexpr (std::is_convertible_v<T, std::string_view>)
        put_string(values_, value);
      else
        put(values_, value);
    }
    return *this;
  }
  // The length is what it says, the elements are what follows: anything.
  GgufBuilder& begin_array(std::string_view key, GgufType type, std::uint64_t length) {
    begin_value(key, GgufType::kArray);
    put(values_, static_cast<std::uint32_t>(type));
    put(values_, length);
    return *this;
  }
  template <class T>
  GgufBuilder& raw(T value) {
    put(values_, value);
    return *this;
  }

  // Zeroed data of size_bytes, behind that of the tensors before.
  GgufBuilder& add_tensor(std::string_view name, const std::vector<std::uint64_t>& dims,
                          GgmlType type, std::size_t size_bytes) {
    add_tensor_info(name, dims, static_cast<std::uint32_t>(type), data_.size());
    data_.resize((data_.size() + size_bytes + data_alignment - 1) / data_alignment *
                 data_alignment);
    return *this;
  }
  GgufBuilder& add_tensor_info(std::string_view name, const std::vector<std::uint64_t>& dims,
                               std::uint32_t type, std::uint64_t offset) {
    put_string(tensors_, name);
    put(tensors_, static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t dim : dims) put(tensors_, dim);
    put(tensors_, type);
    put(tensors_, offset);
    ++num_tensors_;
    return *this;
  }
  std::vector<std::byte>& data() { return data_; }

  std::vector<std::byte> build() const {
    std::vector<std::byte> bytes;
    put(bytes, magic);
    put(bytes, version);
    put(bytes, num_tensors_ + extra_tensors);
    put(bytes, num_values_ + extra_values);
    bytes.insert(bytes.end(), values_.begin(), values_.end());
    bytes.insert(bytes.end(), tensors_.begin(), tensors_.end());
    bytes.resize((bytes.size() + data_alignment - 1) / data_alignment * data_alignment);
    bytes.insert(bytes.end(), data_.begin(), data_.end());
    return bytes;
  }

 private:
  template <class T>
  static void put(std::vector<std::byte>& bytes, T value) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), begin, begin + sizeof value);
  }
  static void put_string(std::vector<std::byte>& bytes, std::string_view text) {
    put(bytes, std::uint64_t{text.size()});
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    bytes.insert(bytes.end(), begin, begin + text.size());
  }
  void begin_value(std::string_view key, GgufType type) {
    put_string(values_, key);
    put(values_, static_cast<std::uint32_t>(type));
    ++num_values_;
  }

  std::vector<std::byte> values_, tensors_, data_;
  std::uint64_t num_values_ = 0;
  std::uint64_t num_tensors_ = 0;
};

}  // namespace larder
