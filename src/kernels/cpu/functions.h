// The functions of one instruction set; table.cc collects them. See kernels.h for what they
// compute.
#pragma once

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {

void rms_norm(const RmsNormArgs& args, int row_begin, int row_end);
// Of one row.
void rms_norm_row(const float* x, const float* weight, float epsilon, float* out, int num_cols);
void quantize_rows(const float* x, int64_t ldx, const QuantizedRows& out, int row_begin,
                   int row_end);
void quantization_rests(const float* x, const QuantizedRows& q, float* rests, int row_begin,
                        int row_end);
void embed(const EmbedArgs& args, int row_begin, int row_end);
void rotations(const RotationArgs& args, int row_begin, int row_end);
void silu_mul(const float* gate, const float* up, float* out, int64_t num_values);
void gelu_mul(const float* gate, const float* up, float* out, int64_t num_values);
void clamped_swiglu(const float* gate, const float* up, float* out, int64_t num_values);
void soft_cap(float* x, int64_t num_values, float cap);
void add_values(float* x, const float* y, int64_t num_values);
void add_bias(float* x, const float* bias, int num_cols, int row_begin, int row_end);
void gather_rows(float* values, int num_cols, const int32_t* rows, int num_rows);
// Of one head.
void rotate(float* x, int rope_dim, const float* cos, const float* sin, bool interleaved);
void store_kv(const StoreKvArgs& args, int row_begin, int row_end);
void to_key_basis(const PagedKvView& kv, int num_heads, float* q, int64_t ldq, int row_begin,
                  int row_end);

void matmul(const MatmulArgs& args, int panel_begin, int panel_end);
int64_t matmul_stack_bytes(const MatmulArgs& args);
void matmul_int8(const MatmulArgs& args, int panel_begin, int panel_end);
void matmul_float(const MatmulArgs& args, int panel_begin, int panel_end);
void unpack_row(const PackedMatrix& w, int row, float* values);

void attention(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch);
void merge_attention(const AttentionArgs& args, const AttentionTask& task, std::byte* partials,
                     int64_t stride_bytes);
void attention_common(const AttentionArgs& args, const CommonTask& task, std::byte* scratch);
int64_t attention_stack_bytes(const AttentionArgs& args);

void run_maxima(const float* logits, int64_t num_logits, float* maxima);
void run_weights(const float* logits, int64_t num_logits, const WeightArgs& args, float* sums);
void weights(const float* logits, int64_t num_logits, const WeightArgs& args, float* weights);

}  // namespace larder::LARDER_ISA_NAMESPACE
