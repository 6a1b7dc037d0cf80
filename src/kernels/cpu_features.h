// What this machine's processor has, and its operating system saves, for the instruction sets that
// kernels are compiled for. cpu/stream_fetch.h's choice is made here, too.
#pragma once

namespace larder {

bool has_avx2();         // with FMA and F16C
bool has_avx512();       // F, DQ, BW, VL and VNNI
bool has_avx512_bf16();
bool has_amx();          // its 8-bit and BF16 products, with AVX-512 BF16; asks Linux for the tiles

}  // namespace larder
