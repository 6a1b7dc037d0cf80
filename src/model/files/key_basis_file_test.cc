#include "model/files/key_basis_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/mapped_file.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

ModelConfig small_config() {
  const MappedFile file(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf");
  return read_model_config(GgufFile(file.bytes()));
}

class KeyBasisFileTest : public ::testing::Test {
 protected:
  KeyBasisFileTest() {
    fs::remove_all(folder_);
    for (int layer = 0; layer < config_.num_layers(); ++layer) {
      KeyBasis basis;
      for (int i = 0; i < config_.kv_size(); ++i) {
        basis.balance.push_back(0.5F + static_cast<float>(layer + i));
        basis.order.push_back(static_cast<std::int16_t>(config_.head_dim - 1 - i % config_.head_dim));
      }
      layers_.push_back(basis);
    }
  }
  ~KeyBasisFileTest() override { fs::remove_all(folder_); }

  static bool are_equal(std::span<const KeyBasis> left, std::span<const KeyBasis> right) {
    return std::ranges::equal(left, right, [](const KeyBasis& one, const KeyBasis& other) {
      return one.balance == other.balance && one.order == other.order;
    });
  }
  fs::path only_file() const { return fs::directory_iterator(folder_)->path(); }
  bool is_refused_with(std::vector<KeyBasis> layers) const {
    return file_.write(layers) && !file_.read(config_);
  }

  const ModelConfig config_ = small_config();
  const std::string folder_ = ::testing::TempDir() + "larder_keys_" + std::to_string(::getpid()) + "/keys";
  const KeyBasisFile file_{folder_, sha256({})};
  std::vector<KeyBasis> layers_;
};

TEST_F(KeyBasisFileTest, GivesWhatWasWritten) {
  EXPECT_FALSE(file_.read(config_));
  EXPECT_TRUE(file_.write(layers_));
  const auto read = file_.read(config_);
  ASSERT_TRUE(read);
  EXPECT_TRUE(are_equal(*read, layers_));
  EXPECT_FALSE(KeyBasisFile(folder_, sha256(std::as_bytes(std::span("other")))).read(config_));
  ModelConfig larger = config_;
  larger.num_kv_heads *= 2;
  EXPECT_FALSE(file_.read(larger));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "nothing else is left there";
}

TEST_F(KeyBasisFileTest, TakesNothingThatIsNotWhole) {
  ASSERT_TRUE(file_.write(layers_));
  std::string bytes;
  {
    std::ifstream file(only_file(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  const auto is_read_from = [&](const std::string& text) {
    std::ofstream(only_file(), std::ios::binary) << text;
    return file_.read(config_).has_value();
  };
  EXPECT_TRUE(is_read_from(bytes));
  EXPECT_FALSE(is_read_from(bytes + "x"));
  for (std::size_t size = 0; size < bytes.size(); size += 7) EXPECT_FALSE(is_read_from(bytes.substr(0, size))) << size;
  for (std::size_t at = 0; at < bytes.size(); at += 5) {
    std::string wrong = bytes;
    wrong[at] = static_cast<char>(wrong[at] ^ 4);
    EXPECT_FALSE(is_read_from(wrong)) << at;
  }
}

TEST_F(KeyBasisFileTest, TakesNoNumbersThatNoMeasurementGives) {
  auto layers = layers_;
  layers[0].order[1] = layers[0].order[0];
  EXPECT_TRUE(is_refused_with(layers));
  layers = layers_;
  layers[0].order[0] = static_cast<std::int16_t>(config_.head_dim);
  EXPECT_TRUE(is_refused_with(layers));
  layers[0].order[0] = -1;
  EXPECT_TRUE(is_refused_with(layers));
  for (const float value : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    layers = layers_;
    layers.back().balance.back() = value;
    EXPECT_TRUE(is_refused_with(layers)) << value;
  }
}

TEST_F(KeyBasisFileTest, KeepsTheNewestOfMany) {
  for (int i = 0; i < 80; ++i) {
    EXPECT_TRUE(KeyBasisFile(folder_, sha256(std::as_bytes(std::span(&i, 1)))).write(layers_));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 64);
  EXPECT_TRUE(file_.write(layers_));
  EXPECT_TRUE(file_.read(config_));
}

// Fault 40, a clock jump: what was written before it lies in the future.
TEST_F(KeyBasisFileTest, KeepsTheNewestWhereTheClockWasSetBack) {
  const auto file_of = [&](int i) { return KeyBasisFile(folder_, sha256(std::as_bytes(std::span(&i, 1)))); };
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(file_of(i).write(layers_));
  const auto now = fs::file_time_type::clock::now();
  for (const auto& entry : fs::directory_iterator(folder_)) fs::last_write_time(entry, now + std::chrono::hours(1));
  for (int i = 64; i < 104; ++i) EXPECT_TRUE(file_of(i).write(layers_));
  for (int i = 64; i < 104; ++i) EXPECT_TRUE(file_of(i).read(config_)) << i;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 64);
}

TEST_F(KeyBasisFileTest, IsNotWrittenWhereThereIsNoFolder) {
  EXPECT_FALSE(KeyBasisFile("/proc/larder", sha256({})).write(layers_));
}

TEST(KeyBasisDigest, DependsOnTheFileAsItWasOpened) {
  const std::string path = ::testing::TempDir() + "larder_digest_" + std::to_string(::getpid()) + ".gguf";
  const std::vector<TokenId> tokens{1, 2, 3};
  fs::copy_file(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf", path, fs::copy_options::overwrite_existing);
  ModelConfig config = read_model_config(ModelFiles(path).gguf());
  const auto digest_of = [&](std::span<const TokenId> some) {
    return key_basis_digest(ModelFiles(path), {config, some}, select_kernels(), nullptr);
  };
  const Digest first = digest_of(tokens);
  EXPECT_EQ(digest_of(tokens), first);
  EXPECT_NE(digest_of(std::span(tokens).first(2)), first);
  // Written anew, with the same bytes and the time of writing set back.
  const auto written = fs::last_write_time(path);
  const ModelFiles before(path);
  fs::copy_file(LARDER_SOURCE_DIR "/tests/golden/model/tiny_llama.gguf", path, fs::copy_options::overwrite_existing);
  fs::last_write_time(path, written);
  EXPECT_NE(digest_of(tokens), first);
  EXPECT_EQ(key_basis_digest(before, {config, tokens}, select_kernels(), nullptr), first);
  config.ropes[0].frequencies[3] *= 2;  // as for longer sequences
  EXPECT_NE(key_basis_digest(before, {config, tokens}, select_kernels(), nullptr), first);
  fs::remove(path);
}

}  // namespace
}  // namespace larder
