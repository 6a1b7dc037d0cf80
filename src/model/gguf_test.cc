#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/files/gguf_builder.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

// The error's text; "" when the file is taken.
std::string error_of(const std::vector<std::byte>& bytes) {
  try {
    const GgufFile file(bytes);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
}
std::string error_of(const GgufBuilder& builder) { return error_of(builder.build()); }

GgufBuilder sound_file() {
  GgufBuilder builder;
  builder.add_string("general.architecture", "llama")
      .add_uint("a.uint", 7)
      .add("a.int", GgufType::kInt64, std::int64_t{-3})
      .add_float("a.float", 0.5f)
      .add_bool("a.bool", true)
      .add_array<std::string>("a.strings", GgufType::kString, {"x", "", "zz"})
      .add_array<std::int32_t>("a.ints", GgufType::kInt32, {1, -2})
      .add_array<float>("a.floats", GgufType::kFloat32, {1.5f})
      .add_tensor("one", {32, 2}, GgmlType::kQ8_0, 68)
      .add_tensor("two", {3}, GgmlType::kF32, 12);
  return builder;
}

TEST(Gguf, ReadsValuesAndTensors) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufBuilder builder = sound_file();
    builder.version = version;
    builder.data()[96] = std::byte{42};
    const auto bytes = builder.build();
    const GgufFile file(bytes);
    EXPECT_EQ(file.find_string("general.architecture"), "llama");
    EXPECT_EQ(file.find_uint("a.uint"), 7u);
    EXPECT_EQ(file.find_float("a.float"), 0.5);
    EXPECT_EQ(file.find_bool("a.bool"), true);
    EXPECT_EQ(*file.find_strings("a.strings"), (std::vector<std::string_view>{"x", "", "zz"}));
    EXPECT_EQ(*file.find_ints("a.ints"), (std::vector<std::int64_t>{1, -2}));
    EXPECT_EQ(*file.find_floats("a.floats"), std::vector<float>{1.5f});
    EXPECT_EQ(file.find_uint("absent"), std::nullopt);
    ASSERT_EQ(file.tensors().size(), 2u);
    const GgufTensor* two = file.find_tensor("two");
    ASSERT_NE(two, nullptr);
    EXPECT_EQ(two->num_cols(), 3);
    EXPECT_EQ(two->num_rows(), 1);
    EXPECT_EQ(two->data.size(), 12u);
    EXPECT_EQ(two->data[0], std::byte{42});
    EXPECT_EQ(file.find_tensor("three"), nullptr);
  }
}

TEST(Gguf, WrongValueTypesNameTheKey) {
  const auto bytes = sound_file().build();
  const GgufFile file(bytes);
  EXPECT_THROW((void)file.find_uint("a.int"), Error);  // negative
  EXPECT_THROW((void)file.find_uint("a.float"), Error);
  EXPECT_THROW((void)file.find_uint("a.ints"), Error);
  EXPECT_THROW((void)file.find_float("a.uint"), Error);
  EXPECT_THROW((void)file.find_bool("a.uint"), Error);
  EXPECT_THROW((void)file.find_string("a.uint"), Error);
  EXPECT_THROW((void)file.find_strings("a.ints"), Error);
  EXPECT_THROW((void)file.find_ints("a.strings"), Error);
  EXPECT_THROW((void)file.find_floats("a.ints"), Error);
  try {
    (void)file.find_string("a.uint");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("a.uint"));
  }
}

TEST(Gguf, EveryTruncationIsRefused) {
  const auto bytes = sound_file().build();
  // The last tensor's data ends 20 bytes of padding before the end.
  for (std::size_t size = 0; size < bytes.size() - 20; ++size) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<long>(size));
    EXPECT_NE(error_of(cut), "") << size;
  }
  EXPECT_EQ(error_of(bytes), "");
}

// As a download leaves it that broke.
TEST(Gguf, WhatIsCutOffIsToldFromWhatIsWrong) {
  EXPECT_EQ(error_of(std::vector<std::byte>()), "GGUF: the file is empty: fetch it again");
  GgufBuilder builder;
  builder.add_tensor("first", {64}, GgmlType::kF32, 256).add_tensor("second", {64}, GgmlType::kF32, 256);
  const auto bytes = builder.build();
  const auto cut_to = [&](std::size_t size) {
    return error_of(std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<long>(size)));
  };
  EXPECT_EQ(cut_to(bytes.size()), "");
  // Whichever tensor is the first that is missing, the file would end with the last.
  for (const std::size_t missing : {1U, 300U})
    EXPECT_THAT(cut_to(bytes.size() - missing),
                HasSubstr(fmt::format("the file is cut off ({} of at least {} bytes), fetch it again", bytes.size() - missing, bytes.size())));
  EXPECT_THAT(cut_to(40), HasSubstr("it is cut off or damaged, fetch it again"));
}

TEST(Gguf, ATypeThatIsNotReadIsNamed) {
  GgufBuilder builder;
  builder.add_tensor_info("blk.0.attn_q.weight", {256}, 16, 0);
  EXPECT_THAT(error_of(builder), HasSubstr("GGUF: tensor 'blk.0.attn_q.weight': IQ2_XXS is not one of the types that Larder reads"));
}

TEST(Gguf, KeysBelowAPrefixAreInOrder) {
  GgufBuilder builder;
  builder.add_uint("b.two", 2).add_uint("a.one", 1).add_uint("b.one", 1).add_uint("b", 1);
  const auto bytes = builder.build();
  EXPECT_EQ(GgufFile(bytes).keys_below("b."), (std::vector<std::string_view>{"b.one", "b.two"}));
}

TEST(Gguf, HeaderIsChecked) {
  GgufBuilder builder = sound_file();
  builder.magic = 0x12345678;
  EXPECT_THAT(error_of(builder), HasSubstr("not a GGUF file"));
  for (const std::uint32_t version : {0u, 1u, 4u, 0x7fffffffu}) {
    builder = sound_file();
    builder.version = version;
    EXPECT_THAT(error_of(builder), HasSubstr("version"));
  }
  builder.version = 0x03000000;
  EXPECT_THAT(error_of(builder), HasSubstr("big-endian"));
}

TEST(Gguf, CountsAreBoundedByTheFile) {
  for (const std::uint64_t extra :
       {std::uint64_t{1} << 20, std::uint64_t{1} << 61, UINT64_MAX - 20}) {
    GgufBuilder builder = sound_file();
    builder.extra_values = extra;
    EXPECT_THAT(error_of(builder), HasSubstr("metadata count"));
    builder.extra_values = 0;
    builder.extra_tensors = extra;
    EXPECT_THAT(error_of(builder), HasSubstr("tensor count"));
  }
}

TEST(Gguf, LengthsAreBoundedByTheFile) {
  for (const std::uint64_t length : {std::uint64_t{1} << 32, std::uint64_t{1} << 61, UINT64_MAX}) {
    for (const auto type :
         {GgufType::kUint8, GgufType::kFloat64, GgufType::kString, GgufType::kArray}) {
      GgufBuilder builder;
      builder.begin_array("key", type, length);
      EXPECT_THAT(error_of(builder), HasSubstr("key: array of")) << length;
    }
    GgufBuilder builder;
    builder.add("key", GgufType::kString, length);
    EXPECT_THAT(error_of(builder), HasSubstr("key: string takes")) << length;
  }
}

TEST(Gguf, TypesAreChecked) {
  GgufBuilder builder;
  builder.add("key", static_cast<GgufType>(13), std::uint64_t{0});
  EXPECT_THAT(error_of(builder), HasSubstr("value type 13 is unknown"));
  builder = {};
  builder.begin_array("key", static_cast<GgufType>(99), 1).raw(std::uint64_t{0});
  EXPECT_THAT(error_of(builder), HasSubstr("element type 99 is unknown"));
  builder = {};
  builder.add("key", GgufType::kBool, std::uint8_t{2});
  EXPECT_THAT(error_of(builder), HasSubstr("neither 0 nor 1"));
}

TEST(Gguf, NestedArraysHaveADepth) {
  const auto nested = [](int depth) {
    GgufBuilder builder;
    builder.begin_array("key", GgufType::kArray, 1);
    for (int i = 2; i < depth; ++i)
      builder.raw(static_cast<std::uint32_t>(GgufType::kArray)).raw(std::uint64_t{1});
    builder.raw(static_cast<std::uint32_t>(GgufType::kUint8)).raw(std::uint64_t{1});
    builder.raw(std::uint8_t{5});
    return builder;
  };
  EXPECT_EQ(error_of(nested(3)), "");
  EXPECT_THAT(error_of(nested(5)), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of(nested(100'000)), HasSubstr("nested too deeply"));
}

TEST(Gguf, NothingStandsTwice) {
  GgufBuilder builder = sound_file();
  builder.add_uint("a.uint", 8);
  EXPECT_THAT(error_of(builder), HasSubstr("a.uint: the key stands twice"));
  builder = sound_file();
  builder.add_tensor("one", {4}, GgmlType::kF32, 16);
  EXPECT_THAT(error_of(builder), HasSubstr("the name stands twice"));
}

TEST(Gguf, AlignmentIsAPowerOfTwo) {
  for (const std::uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 17, 0x80000000u, 0xffffffffu}) {
    GgufBuilder builder = sound_file();
    builder.add_uint("general.alignment", alignment);
    EXPECT_THAT(error_of(builder), HasSubstr("general.alignment")) << alignment;
  }
  GgufBuilder builder;
  builder.data_alignment = 256;
  builder.add_uint("general.alignment", 256).add_tensor("t", {4}, GgmlType::kF32, 16);
  EXPECT_EQ(error_of(builder), "");
  builder.add_tensor_info("u", {1}, 0, 32);
  EXPECT_THAT(error_of(builder), HasSubstr("not a multiple of the alignment"));
}

TEST(Gguf, DimensionsAreChecked) {
  const auto error_with = [](const std::vector<std::uint64_t>& dims, std::uint32_t type) {
    GgufBuilder builder;
    builder.add_tensor_info("t", dims, type, 0);
    builder.data().resize(1024);
    return error_of(builder);
  };
  EXPECT_EQ(error_with({16, 2}, 0), "");
  EXPECT_THAT(error_with({}, 0), HasSubstr("0 dimensions"));
  EXPECT_THAT(error_with({1, 1, 1, 1, 1}, 0), HasSubstr("5 dimensions"));
  EXPECT_THAT(error_with({4, 0}, 0), HasSubstr("dimension 1 is 0"));
  EXPECT_THAT(error_with({UINT64_MAX}, 0), HasSubstr("dimension 0 is"));
  // 2^64 and just over: the product would wrap to a small number.
  const std::uint64_t half = std::uint64_t{1} << 32;
  EXPECT_THAT(error_with({half, half}, 0), HasSubstr("product overflows"));
  EXPECT_THAT(error_with({half, half, 1, 4}, 0), HasSubstr("product overflows"));
  EXPECT_THAT(error_with({half, half / 2 - 1}, 0), HasSubstr("size in bytes overflows"));
  EXPECT_THAT(error_with({48}, static_cast<std::uint32_t>(GgmlType::kQ8_0)),
              HasSubstr("not a multiple of"));
  for (const std::uint32_t type : {4u, 5u, 31u, 1000u, UINT32_MAX})
    EXPECT_THAT(error_with({32}, type), HasSubstr("is not one of the types that Larder reads")) << type;
}

TEST(Gguf, DataLiesInsideTheFileAndApart) {
  const auto error_with = [](std::uint64_t offset, std::uint64_t size) {
    GgufBuilder builder;
    builder.add_tensor_info("first", {8}, 0, 0).add_tensor_info("second", {size}, 0, offset);
    builder.data().resize(96);
    return error_of(builder);
  };
  EXPECT_EQ(error_with(32, 16), "");
  EXPECT_THAT(error_with(32, 17), HasSubstr("beyond the file"));
  EXPECT_THAT(error_with(96, 1), HasSubstr("beyond the file"));
  EXPECT_THAT(error_with(UINT64_MAX - 31, 16), HasSubstr("beyond any file"));
  EXPECT_THAT(error_with(std::uint64_t{1} << 40, 16), HasSubstr("beyond the file"));
  EXPECT_THAT(error_with(0, 8), HasSubstr("overlap"));
  EXPECT_THAT(error_with(33, 8), HasSubstr("alignment"));
}

TEST(Gguf, NamesAreChecked) {
  GgufBuilder builder;
  builder.add_uint("", 1);
  EXPECT_THAT(error_of(builder), HasSubstr("a key of 0 bytes"));
  builder = {};
  builder.add_uint(std::string(70'000, 'k'), 1);
  EXPECT_THAT(error_of(builder), HasSubstr("a key of 70000 bytes"));
  builder = {};
  builder.add_tensor(std::string(65, 't'), {1}, GgmlType::kF32, 4);
  EXPECT_THAT(error_of(builder), HasSubstr("a name of 65 bytes"));
  // An error stays one printable line.
  builder = {};
  builder.add_tensor("a\nb", {0}, GgmlType::kF32, 4);
  EXPECT_THAT(error_of(builder), HasSubstr("tensor 'a?b'"));
}

}  // namespace
}  // namespace larder
