#include "model/files/key_basis_file.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

// Counts up whenever the same model, tokens and kernels are measured otherwise.
constexpr int kMeasurementVersion = 2;
constexpr std::size_t kMostFiles = 64;
constexpr const char* kEnding = ".basis";

std::size_t layer_size_bytes(std::size_t num_values) {
  return num_values * (sizeof(float) + sizeof(std::int16_t));
}

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// Whether every head's order names each of its dimensions once.
bool is_order(std::span<const std::int16_t> order, int head_dim) {
  std::vector<bool> seen;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % static_cast<std::size_t>(head_dim) == 0) seen.assign(static_cast<std::size_t>(head_dim), false);
    if (order[i] < 0 || order[i] >= head_dim || seen[static_cast<std::size_t>(order[i])]) return false;
    seen[static_cast<std::size_t>(order[i])] = true;
  }
  return true;
}

bool is_balance(std::span<const float> balance) {
  return std::ranges::all_of(balance, [](float value) { return std::isfinite(value) && value > 0; });
}

// Files are ordered by their times: where the clock was set back, the new one gets a time behind all others'.
void remove_oldest(const std::string& folder, const fs::path& written) {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const bool is_other = entry->path().extension() == kEnding && entry->path() != written;
    if (is_other) files.emplace_back(entry->last_write_time(error), entry->path());
  }
  if (files.empty()) return;
  std::ranges::sort(files);
  const fs::file_time_type newest = files.back().first;
  if (fs::last_write_time(written, error) <= newest) fs::last_write_time(written, newest + std::chrono::microseconds(1), error);
  for (std::size_t i = 0; i + kMostFiles <= files.size(); ++i) fs::remove(files[i].second, error);
}

}  // namespace

Digest key_basis_digest(const ModelFiles& files, const KeyMeasurement& measurement,
                        const KernelTable& kernels, const Device* device) {
  std::string text = fmt::format("larder keys {} {} ", kMeasurementVersion, kernels.name);
  if (device != nullptr) text += device->arch() + " ";
  for (const MappedFile& file : files.files()) {
    const FileIdentity& id = file.identity();
    text += fmt::format("{} {} {} {} ", id.device, id.inode, id.size_bytes, id.changed_ns);
  }
  text += to_hex(sha256(std::as_bytes(measurement.tokens)));
  const std::vector<double> numbers = computed_numbers(measurement.config, false);
  text += to_hex(sha256(std::as_bytes(std::span(numbers))));
  return sha256(std::as_bytes(std::span(text)));
}

KeyBasisFile::KeyBasisFile(std::string folder, const Digest& digest)
    : folder_(std::move(folder)), path_(folder_ + "/" + to_hex(digest) + kEnding) {}

// The layers' numbers as they lie in memory, behind them the SHA-256 of these.
std::optional<std::vector<KeyBasis>> KeyBasisFile::read(const ModelConfig& config) const {
  const auto num_values = static_cast<std::size_t>(config.kv_size());
  const auto num_layers = static_cast<std::size_t>(config.num_layers());
  const std::size_t size_bytes = num_layers * layer_size_bytes(num_values);
  std::vector<std::byte> bytes(size_bytes + sizeof(Digest));
  std::ifstream file(path_, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file || file.peek() != std::ifstream::traits_type::eof()) return std::nullopt;
  const Digest digest = sha256(std::span(bytes).first(size_bytes));
  if (std::memcmp(digest.data(), bytes.data() + size_bytes, sizeof(Digest)) != 0) return std::nullopt;
  std::vector<KeyBasis> layers(num_layers);
  const std::byte* from = bytes.data();
  for (KeyBasis& layer : layers) {
    layer.balance.resize(num_values);
    layer.order.resize(num_values);
    std::memcpy(layer.balance.data(), from, num_values * sizeof(float));
    std::memcpy(layer.order.data(), from + num_values * sizeof(float), num_values * sizeof(std::int16_t));
    from += layer_size_bytes(num_values);
    if (!is_balance(layer.balance) || !is_order(layer.order, config.head_dim)) return std::nullopt;
  }
  return layers;
}

bool KeyBasisFile::write(std::span<const KeyBasis> layers) const {
  std::vector<std::byte> bytes;
  for (const KeyBasis& layer : layers) {
    append(bytes, std::as_bytes(std::span(layer.balance)));
    append(bytes, std::as_bytes(std::span(layer.order)));
  }
  const Digest digest = sha256(bytes);
  append(bytes, std::as_bytes(std::span(digest)));
  std::error_code error;
  fs::create_directories(folder_, error);
  std::string part = path_ + ".XXXXXX";
  const int fd = ::mkstemp(part.data());
  if (fd < 0) return false;
  ::close(fd);
  std::ofstream file(part, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) fs::rename(part, path_, error);
  if (!file || error) {
    fs::remove(part, error);
    return false;
  }
  remove_oldest(folder_, path_);
  return true;
}

}  // namespace larder
