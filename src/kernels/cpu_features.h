// What this machine's processor has, and its operating system saves, for the instruction sets that
// kernels are compiled for. cpu/stream_fetch.h's choice is made here, too.
#pragma once

namespace larder {

bool has_avx2();         // with FMA and F16C
bool has_avx512();       // F, DQ, BW, VL and VNNI
bool has_avx512_bf16();
bool has_fast_bf16();    // as many products a cycle as in FP32: Intel's give half of that (Emerald Rapids)
bool has_amx();          // its BF16 products, with AVX-512 BF16; asks Linux for the tiles

}  // namespace larder
