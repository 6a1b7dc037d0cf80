// The functions of the CUDA table; see kernels.h for what they compute. Each launches kernels and
// returns; pointers are into the device's memory, except to the argument structs themselves and to
// the PackedMatrix and QuantizedRows that they name.
#pragma once

#include "kernels/cuda/limits.h"
#include "kernels/cuda/platform.h"

namespace larder::LARDER_CUDA_NAMESPACE {

void rms_norm(const RmsNormArgs& args, int row_begin, int row_end);
void quantize_rows(const float* x, std::int64_t ldx, const QuantizedRows& out, int row_begin,
                   int row_end);
void quantization_rests(const float* x, const QuantizedRows& q, float* rests, int row_begin,
                        int row_end);
void embed(const EmbedArgs& args, int row_begin, int row_end);
void rotations(const RotationArgs& args, int row_begin, int row_end);
void silu_mul(const float* gate, const float* up, float* out, std::int64_t num_values);
void gelu_mul(const float* gate, const float* up, float* out, std::int64_t num_values);
void soft_cap(float* x, std::int64_t num_values, float cap);
void add_values(float* x, const float* y, std::int64_t num_values);
void add_bias(float* x, const float* bias, int num_cols, int row_begin, int row_end);
void gather_rows(float* values, int num_cols, const std::int32_t* rows, int num_rows);
void first_of_best(const float* logits, int num_rows, std::int64_t num_logits, TokenId* best);
void draw_tokens(const DrawArgs& args);
void store_kv(const StoreKvArgs& args, int row_begin, int row_end);
void to_key_basis(const PagedKvView& kv, int num_heads, float* q, std::int64_t ldq, int row_begin,
                  int row_end);
void matmul(const MatmulArgs& args, int panel_begin, int panel_end);
void matmul_group(const MatmulArgs* products, int count);
// Panels [panel_begin, panel_end), as far as there are, of products that one launch takes.
inline constexpr int kMostProducts = 3;
struct ProductList {
  const MatmulArgs* of[kMostProducts];
  int count;
  int panel_begin;
  int panel_end;
};
void matmul_int8(const ProductList& products);
void matmul_bf16(const ProductList& products);
void matmul_float(const ProductList& products);
// Of many rows, where MatmulArgs::device_scratch is given and the device has wgmma.
bool takes_bf16_tiles(const ProductList& products);
void matmul_bf16_tiles(const ProductList& products);
void attention_batch(const AttentionArgs& args, std::byte* scratch);
// Its parts but for the merge, by what keys are.
void attention_of_codes(const AttentionArgs& args, std::byte* scratch);
void attention_of_halves(const AttentionArgs& args, std::byte* scratch);
void attention_of_fp8(const AttentionArgs& args, std::byte* scratch);

extern const KernelTable kTable;

}  // namespace larder::LARDER_CUDA_NAMESPACE
