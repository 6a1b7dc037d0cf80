#include "kv/kv_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "kv/kv_storage.h"

namespace larder {
namespace {

std::vector<KvLayerShape> gemma_like(int num_layers, int period) {
  std::vector<KvLayerShape> shapes;
  for (int layer = 0; layer < num_layers; ++layer) {
    shapes.push_back({1, 256, (layer + 1) % period == 0 ? 0 : 512});
  }
  return shapes;
}

TEST(KvLayout, FullModelIsOneGroup) {
  const std::vector<KvLayerShape> shapes(30, KvLayerShape{3, 64, 0});
  const KvLayout layout(shapes);
  EXPECT_EQ(layout.num_groups(), 1);
  EXPECT_EQ(layout.block_size_bytes(), 30 * 2 * 3 * 64 * 2 * kBlockSize);
  EXPECT_EQ(layout.bytes_per_token(), 30 * 2 * 3 * 64 * 2);
}

TEST(KvLayout, MixedModelHasGroupsOfOneSize) {
  const KvLayout layout(gemma_like(18, 6));
  ASSERT_EQ(layout.num_groups(), 6);
  EXPECT_EQ(layout.group(0).window, 0);
  EXPECT_EQ(layout.group(0).layers, (std::vector<int>{5, 11, 17}));
  for (int group = 1; group < 6; ++group) {
    EXPECT_EQ(layout.group(group).window, 512);
    EXPECT_EQ(layout.group(group).layers.size(), 3u);
  }
  for (int group = 0; group < 6; ++group) {
    for (const int layer : layout.group(group).layers) EXPECT_EQ(layout.group_of(layer), group);
  }
}

// Scales and padding counted.
TEST(KvLayout, CodesTakeTheirShareOfMemory) {
  const std::vector<KvLayerShape> smollm2(30, KvLayerShape{3, 64, 0});
  const std::vector<KvLayerShape> llama_1b(16, KvLayerShape{8, 64, 0});
  for (const auto& shapes : {smollm2, llama_1b, gemma_like(18, 6)}) {
    const auto bytes = [&](KvTypes types) {
      return static_cast<double>(KvLayout(shapes, types).bytes_per_token());
    };
    const double f16 = bytes({});
    EXPECT_EQ(bytes({KvType::kBF16, KvType::kBF16}), f16);
    EXPECT_LE(bytes({KvType::kFp8, KvType::kFp8}), 0.54 * f16);
    EXPECT_LE(bytes({KvType::kInt8, KvType::kInt8}), 0.54 * f16);
    EXPECT_LE(bytes({KvType::kInt4, KvType::kInt4}), 0.32 * f16);
  }
  // Three heads of 66 bytes per key, filled up to 64 bytes in a block, beside three of 128 per value.
  EXPECT_EQ(KvLayout(smollm2, {KvType::kInt8, KvType::kF16}).bytes_per_token(), 30 * (200 + 384));
}

TEST(KvLayout, ViewsKnowTheirTypes) {
  const std::vector<KvLayerShape> shapes(2, KvLayerShape{3, 64, 0});
  const KvTypes types = {KvType::kInt8, KvType::kBF16};
  const KvLayout layout(shapes, types);
  EXPECT_EQ(layout.types(), types);
  EXPECT_EQ(layout.view(1).types, types);
  EXPECT_GE(layout.view(1).v_offset_bytes - layout.view(1).k_offset_bytes, 3 * 66 * kBlockSize);
}

TEST(KvLayout, TellsWhatItsKeyBasisTakes) {
  const std::vector<KvLayerShape> shapes(5, KvLayerShape{3, 64, 0});
  const std::int64_t of_a_layer = 3 * 64 * (4 + 2);
  EXPECT_EQ(KvLayout(shapes, {KvType::kInt4, KvType::kF16}).key_basis_size_bytes(), 5 * of_a_layer);
  EXPECT_EQ(KvLayout(shapes, {KvType::kInt8, KvType::kF16}).key_basis_size_bytes(), 5 * of_a_layer);
  EXPECT_EQ(KvLayout(shapes, {KvType::kBF16, KvType::kInt4}).key_basis_size_bytes(), 0);
}

TEST(KvLayout, PadsAtMostOneLayerIn16) {
  for (int num_layers = 1; num_layers <= 64; ++num_layers) {
    const KvLayout layout(gemma_like(num_layers, 6));
    std::size_t most = 0;
    for (int group = 0; group < layout.num_groups(); ++group) {
      most = std::max(most, layout.group(group).layers.size());
    }
    const int room = layout.num_groups() * static_cast<int>(most);
    EXPECT_LE((room - num_layers) * 16, num_layers) << num_layers;
  }
}

TEST(KvLayout, LayersOfAGroupDoNotOverlap) {
  const std::vector<KvLayerShape> shapes = {{2, 64, 0}, {4, 128, 0}, {1, 80, 0}};
  const KvLayout layout(shapes);
  ASSERT_EQ(layout.num_groups(), 1);
  std::vector<int> owner(static_cast<std::size_t>(layout.block_size_bytes()), 0);
  for (int layer = 0; layer < 3; ++layer) {
    const PagedKvView view = layout.view(layer);
    EXPECT_EQ(view.block_stride_bytes, layout.block_size_bytes());
    EXPECT_EQ(view.k_offset_bytes % 64, 0);
    EXPECT_EQ(view.v_offset_bytes % 64, 0);
    const auto size = static_cast<std::size_t>(view.num_kv_heads) * view.head_dim * kBlockSize * 2;
    for (const std::int64_t offset : {view.k_offset_bytes, view.v_offset_bytes}) {
      for (std::size_t i = 0; i < size; ++i) ++owner.at(static_cast<std::size_t>(offset) + i);
    }
  }
  for (const int count : owner) EXPECT_LE(count, 1);
}

TEST(KvLayout, CountsBlocksThatAWindowGivesBack) {
  const KvLayout layout(gemma_like(18, 6));
  EXPECT_EQ(layout.num_blocks_for(16, 512), 6);
  EXPECT_EQ(layout.num_blocks_for(160, 512), 60);
  // Full: 512 blocks. Each sliding group: 511 + 128 tokens over at most 41 blocks.
  EXPECT_EQ(layout.num_blocks_for(8192, 128), 512 + 5 * 41);
}

TEST(KvLayout, StoresALatentOnce) {
  const std::vector<KvLayerShape> pair(2, {1, 576, 0});
  const std::vector<KvLayerShape> latent(2, {1, 576, 0, true});
  EXPECT_EQ(KvLayout(pair).bytes_per_token(), 2 * 2 * 576 * 2);
  EXPECT_EQ(KvLayout(latent).bytes_per_token(), 2 * 576 * 2);
  EXPECT_LT(KvLayout(latent, {KvType::kInt8, KvType::kInt8}).bytes_per_token(), 2 * 600);
}

TEST(KvLayout, RefusesShapesOutOfRange) {
  for (const KvLayerShape& shape : std::vector<KvLayerShape>{
           {0, 64, 0}, {1, 0, 0}, {-1, 64, 0}, {1, 64, -1}, {1 << 30, 1 << 30, 0}}) {
    EXPECT_THROW(KvLayout(std::vector<KvLayerShape>{shape}), Error);
  }
  EXPECT_THROW(KvLayout(std::vector<KvLayerShape>{}), Error);
  const std::vector<KvLayerShape> large = {{1, 2 * kMaxCodeDim, 0}};
  EXPECT_NO_THROW(KvLayout{large});
  EXPECT_THROW(KvLayout(large, {KvType::kF16, KvType::kInt8}), Error);
}

TEST(KvStorage, CopiesOneBlockAndNoMore) {
  const KvLayout layout(std::vector<KvLayerShape>(2, KvLayerShape{1, 8, 0}));
  KvStorage storage(layout, 3);
  const auto size = static_cast<std::size_t>(layout.block_size_bytes());
  ASSERT_EQ(storage.size_bytes(), 3 * size);
  std::byte* base = storage.view(0).base;
  std::memset(base, 1, size);
  std::memset(base + size, 2, size);
  std::memset(base + 2 * size, 3, size);
  storage.copy_block(BlockId{0}, BlockId{1});
  EXPECT_EQ(std::memcmp(base, base + size, size), 0);
  EXPECT_EQ(base[2 * size], std::byte{3});
  EXPECT_EQ(storage.view(1).base, base);
}

TEST(KvStorage, RefusesSizesThatOverflow) {
  const KvLayout layout(std::vector<KvLayerShape>(1000, KvLayerShape{1024, 1024, 0}));
  EXPECT_THROW(KvStorage(layout, 2147483647), Error);
  EXPECT_THROW(KvStorage(layout, 0), Error);
}

}  // namespace
}  // namespace larder
