#include "model/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/error.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> file_of(const std::string& header, std::size_t num_data_bytes) {
  const std::uint64_t length = header.size();
  std::vector<std::byte> bytes(sizeof length + header.size() + num_data_bytes);
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, header.data(), header.size());
  for (std::size_t i = 0; i < num_data_bytes; ++i) bytes[sizeof length + header.size() + i] = static_cast<std::byte>(i);
  return bytes;
}

std::string error_of(const std::vector<std::byte>& bytes) {
  try {
    (void)read_safetensors(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Safetensors, TensorsAreViews) {
  const auto bytes = file_of(R"({"__metadata__":{"format":"pt","deep":[{"x":[1,null]}]},
    "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},
    "a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"},
    "h":{"dtype":"F16","shape":[1],"data_offsets":[20,22]},
    "ids":{"dtype":"I64","shape":[],"data_offsets":[22,30]},
    "none":{"dtype":"F32","shape":[0,4],"data_offsets":[30,30]}}   )", 30);
  const auto tensors = read_safetensors(bytes);
  ASSERT_EQ(tensors.size(), 5u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].type, GgmlType::kF32);
  EXPECT_EQ(tensors[0].data.data(), bytes.data() + bytes.size() - 30);
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].type, GgmlType::kBF16);
  EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(tensors[1].data.size(), 12u);
  EXPECT_EQ(tensors[2].type, GgmlType::kF16);
  EXPECT_EQ(tensors[3].type, std::nullopt);
  EXPECT_EQ(tensors[3].dtype, "I64");
  EXPECT_TRUE(tensors[4].data.empty());
}

TEST(Safetensors, WhatLiesIsRefused) {
  const auto one = [](const std::string& fields) { return file_of("{\"t\":{" + fields + "}}", 16); };
  const std::pair<std::vector<std::byte>, const char*> cases[] = {
      {{}, "0 bytes hold no header"},
      {std::vector<std::byte>(7), "7 bytes hold no header"},
      {std::vector<std::byte>(8, std::byte{255}), "a header of 18446744073709551615 bytes"},
      {file_of("", 0), "not valid JSON"},
      {file_of("{\"a\":", 0), "not valid JSON"},
      {file_of("[1]", 0), "not an object of tensors"},
      {file_of("7", 0), "not an object of tensors"},
      {file_of("{\"t\":5}", 0), "not an object of tensors"},
      {file_of("{\"t\":{}}", 0), "tensor 't': dtype: '' is unknown"},
      {one(R"("dtype":"F31","shape":[4],"data_offsets":[0,16])"), "dtype: 'F31' is unknown"},
      {one(R"("dtype":"F32","data_offsets":[0,16])"), "shape: missing"},
      {one(R"("dtype":"F32","shape":[4])"), "data_offsets: 0 numbers"},
      {one(R"("dtype":"F32","shape":[4],"data_offsets":[0])"), "data_offsets: 1 numbers"},
      {one(R"("dtype":"F32","shape":[4],"data_offsets":[0,1,2])"), "data_offsets: more than 2"},
      {one(R"("dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1)"), "'x' is unknown"},
      {one(R"("dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16])"), "shape stands twice"},
      {one(R"("dtype":"F32","shape":[-4],"data_offsets":[0,16])"), "a negative number"},
      {one(R"("dtype":"F32","shape":[4.5],"data_offsets":[0,16])"), "a fraction"},
      {one(R"("dtype":"F32","shape":["4"],"data_offsets":[0,16])"), "a text"},
      {one(R"("dtype":"F32","shape":[[4]],"data_offsets":[0,16])"), "an array"},
      {one(R"("dtype":"F32","shape":{"a":4},"data_offsets":[0,16])"), "an object"},
      {one(R"("dtype":4,"shape":[4],"data_offsets":[0,16])"), "a number"},
      {one(R"("dtype":"F32","shape":[4,1,1,1,1,1,1,1,1],"data_offsets":[0,16])"), "more than 8 dimensions"},
      {one(R"("dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,16])"), "overflows"},
      {one(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,16])"), "overflows"},
      {one(R"("dtype":"F32","shape":[4],"data_offsets":[1,17])"), "do not lie in the file's 16 bytes"},
      {one(R"("dtype":"F32","shape":[4],"data_offsets":[16,0])"), "do not lie"},
      {one(R"("dtype":"F32","shape":[3],"data_offsets":[0,16])"), "16 bytes, but the shape takes 12"},
      {file_of(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},"b":{"dtype":"U8","shape":[9],"data_offsets":[7,16]}})", 16),
       "tensor 'b': data_offsets: 'a' has these bytes, too"},
      {file_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})", 16),
       "tensor 'a': the name stands twice"},
      {file_of("{\"__metadata__\":" + std::string(100, '[') + std::string(100, ']') + "}", 0), "nested too deeply"}};
  for (const auto& [bytes, expected] : cases) EXPECT_THAT(error_of(bytes), HasSubstr(expected));
}

}  // namespace
}  // namespace larder
