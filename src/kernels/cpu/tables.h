// One table per instruction set that was compiled in.
#pragma once

#include "kernels/kernels.h"

namespace larder {
namespace isa_generic {
extern const KernelTable kTable;
}
namespace isa_avx2 {
extern const KernelTable kTable;
}
namespace isa_avx512 {
extern const KernelTable kTable;
}
// What AVX-512 BF16 adds: products of BF16 weights with rounded activations, and attention.
namespace isa_avx512_bf16 {
bool multiplies(const MatmulArgs& args);
void matmul_bf16(const MatmulArgs& args, int panel_begin, int panel_end);
std::int64_t matmul_bf16_stack_bytes();
void attention(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch);
void merge_attention(const AttentionArgs& args, const AttentionTask& task, std::byte* partials,
                     std::int64_t stride_bytes);
void attention_common(const AttentionArgs& args, const CommonTask& task, std::byte* scratch);
std::int64_t attention_stack_bytes(const AttentionArgs& args);
}  // namespace isa_avx512_bf16
// The same on AMX tiles.
namespace isa_amx {
bool multiplies(const MatmulArgs& args);
void matmul_bf16(const MatmulArgs& args, int panel_begin, int panel_end);
std::int64_t matmul_bf16_stack_bytes();
bool multiplies_w8(const MatmulArgs& args);
void matmul_w8(const MatmulArgs& args, int panel_begin, int panel_end);
std::int64_t matmul_w8_stack_bytes();
// Of both.
int num_packed_tiles(const MatmulArgs& args);
void pack_rows(const MatmulArgs& args, std::byte* to, int tile_begin, int tile_end);
void attention(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch);
void merge_attention(const AttentionArgs& args, const AttentionTask& task, std::byte* partials,
                     std::int64_t stride_bytes);
void attention_common(const AttentionArgs& args, const CommonTask& task, std::byte* scratch);
std::int64_t attention_stack_bytes(const AttentionArgs& args);
}  // namespace isa_amx
// Compiled into the tests alone: isa_amx with its tile instructions written in C++.
namespace isa_amx_emulated {
bool multiplies(const MatmulArgs& args);
void matmul_bf16(const MatmulArgs& args, int panel_begin, int panel_end);
std::int64_t matmul_bf16_stack_bytes();
bool multiplies_w8(const MatmulArgs& args);
void matmul_w8(const MatmulArgs& args, int panel_begin, int panel_end);
std::int64_t matmul_w8_stack_bytes();
// Of both.
int num_packed_tiles(const MatmulArgs& args);
void pack_rows(const MatmulArgs& args, std::byte* to, int tile_begin, int tile_end);
void attention(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch);
void merge_attention(const AttentionArgs& args, const AttentionTask& task, std::byte* partials,
                     std::int64_t stride_bytes);
void attention_common(const AttentionArgs& args, const CommonTask& task, std::byte* scratch);
std::int64_t attention_stack_bytes(const AttentionArgs& args);
}  // namespace isa_amx_emulated
}  // namespace larder
