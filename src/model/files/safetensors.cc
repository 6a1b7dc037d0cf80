#include "model/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's
constexpr std::size_t kMaxDims = 8;
constexpr int kMaxDepth = 64;  // of what is passed over

struct DtypeTraits {
  std::string_view name;
  std::uint64_t size_bytes;
  std::optional<GgmlType> type;
};

constexpr DtypeTraits kDtypes[] = {
    {"F32", 4, GgmlType::kF32}, {"F16", 2, GgmlType::kF16}, {"BF16", 2, GgmlType::kBF16},
    {"F64", 8, {}},     {"I64", 8, {}},     {"U64", 8, {}}, {"I32", 4, {}}, {"U32", 4, {}},
    {"I16", 2, {}},     {"U16", 2, {}},     {"I8", 1, {}},  {"U8", 1, {}},  {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}}, {"F8_E5M2", 1, {}},
};

// What the header says of one tensor; the offsets are from the end of the header.
struct Entry {
  SafetensorsTensor tensor;
  bool has_shape = false;
  std::vector<std::uint64_t> offsets;
};

[[noreturn]] void fail(const Entry& entry, const std::string& reason) {
  throw_invalid("safetensors: tensor '{}': {}", printable(entry.tensor.name), reason);
}

// Gives the tensor its type and its bytes, which have to be as many as its shape says.
void place(Entry& entry, std::span<const std::byte> data) {
  SafetensorsTensor& tensor = entry.tensor;
  const auto* traits = std::ranges::find(kDtypes, std::string_view(tensor.dtype), &DtypeTraits::name);
  if (traits == std::end(kDtypes)) fail(entry, fmt::format("dtype: '{}' is unknown", printable(tensor.dtype)));
  tensor.type = traits->type;
  if (!entry.has_shape) fail(entry, "shape: missing");
  if (entry.offsets.size() != 2) fail(entry, fmt::format("data_offsets: {} numbers; 2 are expected", entry.offsets.size()));
  std::uint64_t size_bytes = traits->size_bytes;
  for (const std::int64_t dim : tensor.shape)
    if (__builtin_mul_overflow(size_bytes, static_cast<std::uint64_t>(dim), &size_bytes) || size_bytes > INT64_MAX)
      fail(entry, "shape: the size in bytes overflows");
  const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end || end > data.size())
    fail(entry, fmt::format("data_offsets: {} to {} do not lie in the file's {} bytes of data", begin, end, data.size()));
  if (end - begin != size_bytes)
    fail(entry, fmt::format("data_offsets: {} bytes, but the shape takes {}", end - begin, size_bytes));
  tensor.data = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size_bytes));
}

// Receives the parser's events: nothing is kept but the entries. Levels: 1 = the header, 2 = a tensor, 3 = a list.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // data: what lies behind the header.
  explicit HeaderReader(std::span<const std::byte> data) : data_(data) {}

  std::vector<Entry> take() { return std::move(entries_); }

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a bool"); }
  bool number_integer(number_integer_t) override { return other("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a fraction, or too large"); }
  bool binary(binary_t&) override { return false; }

  bool number_unsigned(number_unsigned_t value) override {
    if (is_metadata_) return true;
    if (level_ != 3) return other("a number");
    Entry& entry = entries_.back();
    if (field_ == "data_offsets") {
      if (entry.offsets.size() == 2) fail(entry, "data_offsets: more than 2 numbers");
      entry.offsets.push_back(value);
      return true;
    }
    if (value > INT64_MAX) fail(entry, "shape: a dimension overflows");
    if (entry.tensor.shape.size() == kMaxDims) fail(entry, fmt::format("shape: more than {} dimensions", kMaxDims));
    entry.tensor.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (is_metadata_) return true;
    if (level_ != 2 || field_ != "dtype") return other("a text");
    entries_.back().tensor.dtype = value;
    return true;
  }

  bool key(string_t& name) override {
    if (level_ == 1) {
      is_metadata_ = name == "__metadata__";
      if (!is_metadata_) entries_.emplace_back().tensor.name = name;
    } else if (!is_metadata_) {
      field_ = name;
      if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets")
        fail(entries_.back(), fmt::format("'{}' is unknown", printable(name)));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (level_ > 1 && !is_metadata_) return other("an object");
    return enter();
  }

  bool start_array(std::size_t) override {
    if (is_metadata_) return enter();
    if (level_ != 2 || field_ == "dtype") return other("an array");
    Entry& entry = entries_.back();
    if (field_ == "shape" ? entry.has_shape : !entry.offsets.empty())
      fail(entry, fmt::format("{} stands twice", field_));
    entry.has_shape |= field_ == "shape";
    return enter();
  }

  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw_invalid("safetensors: the header is not valid JSON at byte {}", position);
  }

 private:
  bool other(const char* what) {
    if (is_metadata_) return true;
    if (level_ < 2) throw_invalid("safetensors: the header is not an object of tensors: it has {}", what);
    fail(entries_.back(), fmt::format("{}: is or has {}", field_.empty() ? "dtype" : field_, what));
  }

  bool enter() {
    if (++level_ > kMaxDepth) throw_invalid("safetensors: __metadata__: nested too deeply");
    if (level_ == 2) field_.clear();
    return true;
  }

  bool leave() {
    if (--level_ == 1 && !std::exchange(is_metadata_, false)) place(entries_.back(), data_);
    return true;
  }

  const std::span<const std::byte> data_;
  std::vector<Entry> entries_;
  int level_ = 0;
  bool is_metadata_ = false;  // of the file, which may say anything
  std::string field_;
};

}  // namespace

std::vector<SafetensorsTensor> read_safetensors(std::span<const std::byte> bytes) {
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) throw_invalid("safetensors: {} bytes hold no header", bytes.size());
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  bytes = bytes.subspan(sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size())
    throw_invalid("safetensors: a header of {} bytes; the file has {} behind its length, and {} at most are taken",
                  header_bytes, bytes.size(), kMaxHeaderBytes);
  const auto header = bytes.first(static_cast<std::size_t>(header_bytes));
  HeaderReader reader(bytes.subspan(header.size()));
  const auto* text = reinterpret_cast<const char*>(header.data());
  nlohmann::json::sax_parse(text, text + header.size(), &reader);
  std::vector<Entry> entries = reader.take();
  std::ranges::sort(entries, {}, [](const Entry& entry) { return entry.tensor.data.data(); });
  const Entry* previous = nullptr;  // of those that have bytes
  for (const Entry& entry : entries) {
    if (entry.tensor.data.empty()) continue;
    if (previous && entry.offsets[0] < previous->offsets[1])
      fail(entry, fmt::format("data_offsets: '{}' has these bytes, too", printable(previous->tensor.name)));
    previous = &entry;
  }
  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) tensors.push_back(std::move(entry.tensor));
  std::vector<std::string_view> names;
  for (const SafetensorsTensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw_invalid("safetensors: tensor '{}': the name stands twice", printable(*twice));
  return tensors;
}

}  // namespace larder
