#include "kv/kv_type_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace larder {
namespace {

TEST(KvTypeNames, AreReadAndWritten) {
  EXPECT_EQ(parse_kv_types("f16"), KvTypes{});
  EXPECT_EQ(parse_kv_types("bf16"), (KvTypes{KvType::kBF16, KvType::kBF16}));
  EXPECT_EQ(parse_kv_types("k=int8,v=f16"), (KvTypes{KvType::kInt8, KvType::kF16}));
  for (const char* text : {"f16", "bf16", "fp8", "int8", "int4", "k=int8,v=int4", "k=f16,v=bf16"}) {
    EXPECT_EQ(format_kv_types(parse_kv_types(text)), text);
  }
  EXPECT_EQ(format_kv_types(parse_kv_types("k=int8,v=int8")), "int8");
}

TEST(KvTypeNames, OthersAreRefusedWithTheChoices) {
  for (const char* text : {"", "int3", "F16", "k=int8", "v=int8,k=f16", "k=int8,v=", "int8,int8"}) {
    EXPECT_THROW(parse_kv_types(text), Error) << text;
  }
  try {
    parse_kv_types("int3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("--kv-type 'int3'"));
    EXPECT_THAT(error.what(), testing::HasSubstr("bf16"));
  }
}

}  // namespace
}  // namespace larder
