#include "model/files/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv/tiers/tier_test_support.h"
#include "model/files/gguf_builder.h"

namespace larder {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelFilesTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string write(const std::string& name, const GgufBuilder& builder) const {
    const std::vector<std::byte> bytes = builder.build();
    std::ofstream(path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }
  // Pieces of a model: a, b and c have the tensors ta, tb and tc, each filled with its letter.
  void write_all() const {
    for (int i = 0; i < 3; ++i) write(name_of(i + 1), piece(i, 3));
  }
  static std::string name_of(int number) {
    return "big model-0000" + std::to_string(number) + "-of-00003.gguf";
  }
  static GgufBuilder piece(int index, int count) {
    GgufBuilder builder;
    if (index == 0) builder.add_string("general.name", "Big");
    builder.add("split.no", GgufType::kUint16, static_cast<std::uint16_t>(index))
        .add("split.count", GgufType::kUint16, static_cast<std::uint16_t>(count))
        .add("split.tensors.count", GgufType::kInt32, std::int32_t{3});
    const char letter = static_cast<char>('a' + index);
    builder.add_tensor(std::string("t") + letter, {8}, GgmlType::kF32, 32);
    std::memset(builder.data().data(), letter, 32);
    return builder;
  }
  std::string error_of(const std::string& name) const {
    try {
      (void)ModelFiles(path(name));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

 private:
  TempDir folder_;
};

TEST_F(ModelFilesTest, OneFileIsOne) {
  const ModelFiles files(write("whole.gguf", GgufBuilder()
                                                 .add("split.count", GgufType::kUint16, std::uint16_t{1})
                                                 .add_tensor("t", {8}, GgmlType::kF32, 32)));
  EXPECT_EQ(files.files().size(), 1u);
  EXPECT_EQ(files.gguf().tensors().size(), 1u);
  EXPECT_EQ(files.size_bytes(), std::filesystem::file_size(path("whole.gguf")));
}

TEST_F(ModelFilesTest, AnyPieceBringsTheOthers) {
  write_all();
  for (int number = 1; number <= 3; ++number) {
    const ModelFiles files(path(name_of(number)));
    EXPECT_EQ(files.files().size(), 3u);
    EXPECT_EQ(files.gguf().find_string("general.name"), "Big");
    ASSERT_EQ(files.gguf().tensors().size(), 3u);
    for (const char letter : {'a', 'b', 'c'}) {
      const GgufTensor* tensor = files.gguf().find_tensor(std::string("t") + letter);
      ASSERT_NE(tensor, nullptr);
      for (const std::byte byte : tensor->data) ASSERT_EQ(static_cast<char>(byte), letter);
    }
  }
}

TEST_F(ModelFilesTest, AMissingPieceIsNamed) {
  write_all();
  std::filesystem::remove(path(name_of(2)));
  EXPECT_THAT(error_of(name_of(3)), AllOf(HasSubstr(path(name_of(2))), HasSubstr("No such file")));
}

TEST_F(ModelFilesTest, APieceOfAnotherNameIsRefused) {
  write("model.gguf", piece(1, 3));
  EXPECT_THAT(error_of("model.gguf"), AllOf(HasSubstr("piece 2 of 3"), HasSubstr("-00002-of-00003.gguf")));
}

TEST_F(ModelFilesTest, WhatDoesNotBelongIsRefused) {
  write_all();
  write(name_of(2), piece(2, 3));
  EXPECT_THAT(error_of(name_of(1)), AllOf(HasSubstr(name_of(2)), HasSubstr("piece 3 of 3, where 2 of 3 belongs")));
  write(name_of(2), piece(1, 4));
  EXPECT_THAT(error_of(name_of(1)), HasSubstr("piece 2 of 4, where 2 of 3 belongs"));
  write(name_of(2), GgufBuilder());
  EXPECT_THAT(error_of(name_of(1)), HasSubstr("piece 1 of 1, where 2 of 3 belongs"));
  std::ofstream(path(name_of(2))) << "nonsense";
  EXPECT_THAT(error_of(name_of(1)), AllOf(HasSubstr(name_of(2)), HasSubstr("not a GGUF file")));
}

TEST_F(ModelFilesTest, TensorsAreThereOnce) {
  write_all();
  write(name_of(3), piece(2, 3).add_tensor("ta", {8}, GgmlType::kF32, 32));
  EXPECT_THAT(error_of(name_of(1)), AllOf(HasSubstr(name_of(3)), HasSubstr("ta: the name stands in another piece")));
  write(name_of(3), piece(2, 3).add_tensor("td", {8}, GgmlType::kF32, 32));
  EXPECT_THAT(error_of(name_of(1)), HasSubstr("split.tensors.count: 3, but the pieces have 4"));
}

TEST_F(ModelFilesTest, CountsAreBounded) {
  GgufBuilder many;
  many.add("split.count", GgufType::kUint64, std::uint64_t{1} << 60);
  write("many.gguf", many);
  EXPECT_THAT(error_of("many.gguf"), HasSubstr("at most 99999"));
  GgufBuilder beyond;
  beyond.add("split.no", GgufType::kUint16, std::uint16_t{3}).add("split.count", GgufType::kUint16, std::uint16_t{3});
  write("beyond-00004-of-00003.gguf", beyond);
  EXPECT_THAT(error_of("beyond-00004-of-00003.gguf"), HasSubstr("piece 4 of 3"));
}

}  // namespace
}  // namespace larder
