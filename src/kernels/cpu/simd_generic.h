// Any processor: the compiler's own vectors. Multiply and add round apart. See simd.h.
#pragma once

namespace larder::LARDER_ISA_NAMESPACE {

typedef float V16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef U16
    Bytes64;  // as the machine's own 32-bit words, byte j of lane i at bits 8j on every machine
typedef I16 Mask16;

inline constexpr int kTileRows = 2;
inline constexpr int kTilePanels = 1;
inline constexpr int kAttentionRows = 2;
inline constexpr int kAttentionVectors = 2;

LARDER_INLINE V16 set1(float x) { return V16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
LARDER_INLINE I16 set1_int(int32_t x) {
  return I16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
LARDER_INLINE V16 zero() { return set1(0.0F); }
LARDER_INLINE V16 load(const float* p) {
  V16 v;
  memcpy(&v, p, sizeof v);
  return v;
}
LARDER_INLINE void store(float* p, V16 v) { memcpy(p, &v, sizeof v); }
LARDER_INLINE V16 load_partial(const float* p, int n) {
  V16 v = zero();
  memcpy(&v, p, sizeof(float) * static_cast<size_t>(n));
  return v;
}
LARDER_INLINE void store_partial(float* p, V16 v, int n) {
  memcpy(p, &v, sizeof(float) * static_cast<size_t>(n));
}
LARDER_INLINE V16 load_f16(const uint16_t* p) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  Halves halves;
  memcpy(&halves, p, sizeof halves);
  const U16 bits = __builtin_convertvector(halves, U16);
  // Exponent and fraction at FP32's place are 2^-112 of the value, FP16's subnormals among them.
  const U16 placed = (bits & 0x7FFFU) << 13;
  V16 v;
  memcpy(&v, &placed, sizeof v);
  v *= 0x1p112F;
  U16 result;
  memcpy(&result, &v, sizeof result);
  const U16 infinite = (bits & 0x7C00U) == 0x7C00U ? U16{} + 0x7F800000U : U16{};
  result |= infinite | (bits & 0x8000U) << 16;
  memcpy(&v, &result, sizeof v);
  return v;
}
LARDER_INLINE void store_f16_partial(uint16_t* p, V16 v, int n) {
  for (int i = 0; i < n; ++i) p[i] = float_to_half(v[i]);
}

// 16 bytes of E4M3, as what their bits stand for in FP16 (kE4m3InHalf).
LARDER_INLINE V16 load_e4m3(const uint8_t* p) {
  uint16_t halves[16];
  for (int i = 0; i < 16; ++i)
    halves[i] = static_cast<uint16_t>((p[i] & 0x80U) << 8 | (p[i] & 0x7FU) << 7);
  return load_f16(halves);
}

LARDER_INLINE V16 load_bf16(const uint16_t* p) {
  U16 bits;
  for (int i = 0; i < 16; ++i) bits[i] = uint32_t{p[i]} << 16;
  V16 v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

LARDER_INLINE V16 add(V16 a, V16 b) { return a + b; }
LARDER_INLINE V16 sub(V16 a, V16 b) { return a - b; }
LARDER_INLINE V16 mul(V16 a, V16 b) { return a * b; }
LARDER_INLINE V16 div(V16 a, V16 b) { return a / b; }
LARDER_INLINE V16 fma(V16 a, V16 b, V16 c) { return a * b + c; }
// As x86's instruction: b when either is NaN.
LARDER_INLINE V16 max(V16 a, V16 b) { return a > b ? a : b; }
LARDER_INLINE V16 min(V16 a, V16 b) { return a < b ? a : b; }
LARDER_INLINE V16 abs(V16 a) {
  I16 bits;
  memcpy(&bits, &a, sizeof bits);
  bits &= set1_int(0x7FFFFFFF);
  memcpy(&a, &bits, sizeof bits);
  return a;
}

LARDER_INLINE V16 select(Mask16 mask, V16 yes, V16 no) { return mask ? yes : no; }
// Per lane a >= b ? yes : no (no when NaN).
LARDER_INLINE V16 select_ge(V16 a, V16 b, V16 yes, V16 no) { return a >= b ? yes : no; }
// Per lane a >= b ? yes : 0.
LARDER_INLINE V16 keep_ge(V16 a, V16 b, V16 yes) { return a >= b ? yes : zero(); }
// Lanes i with begin <= i < end; begin and end may lie outside [0, 16].
LARDER_INLINE Mask16 lanes_between(int begin, int end) {
  const I16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (lane >= set1_int(begin)) & (lane < set1_int(end));
}

// Nearest even: FP32 has no fraction bits above 2^23. For |a| < 2^22.
LARDER_INLINE V16 round_to_int(V16 a) {
  const V16 shift = set1(12582912.0F);
  return (a + shift) - shift;
}
// Downwards. For |a| < 2^22.
LARDER_INLINE V16 floor(V16 a) {
  const V16 nearest = round_to_int(a);
  return nearest > a ? nearest - set1(1.0F) : nearest;
}
// Lanes in pairs that lie kHalf apart: their sum in the lower one, their difference in the other.
template <int kHalf>
LARDER_INLINE V16 butterfly(V16 v) {
  V16 result;
  for (int i = 0; i < 16; ++i)
    result[i] = (i & kHalf) == 0 ? v[i] + v[i + kHalf] : v[i - kHalf] - v[i];
  return result;
}
// Lanes 2i and 2i + 1 are a pair, turned by the angle whose cosine and sine are cos[i] and sin[i]:
// (a cos - b sin, a sin + b cos), the products rounded.
LARDER_INLINE V16 rotate_pairs(V16 v, const float* cos, const float* sin) {
  for (int i = 0; i < 8; ++i) {
    const float a = v[2 * i];
    const float b = v[2 * i + 1];
    v[2 * i] = a * cos[i] - b * sin[i];
    v[2 * i + 1] = a * sin[i] + b * cos[i];
  }
  return v;
}
LARDER_INLINE V16 to_float(I16 v) { return __builtin_convertvector(v, V16); }
LARDER_INLINE I16 to_int(V16 v) { return __builtin_convertvector(round_to_int(v), I16); }
// x * 2^n for whole n, where x and that are normal numbers: n is added to the exponent.
LARDER_INLINE V16 times_power_of_two(V16 x, V16 n) {
  I16 bits;
  memcpy(&bits, &x, sizeof bits);
  bits += to_int(n) << 23;
  memcpy(&x, &bits, sizeof x);
  return x;
}
// ((0 + 8) + (4 + 12)) + ...: halves folded onto each other.
LARDER_INLINE float reduce_add(V16 v) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}
LARDER_INLINE float reduce_max(V16 v) {
  float largest = v[0];
  for (int i = 1; i < 16; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}
// The largest magnitude of both vectors' lanes, NaN where one is: without signs, the bits of floats
// have their order, those of NaN at the end.
LARDER_INLINE float largest_magnitude(V16 a, V16 b) {
  int32_t bits[32];
  memcpy(bits, &a, sizeof a);
  memcpy(bits + 16, &b, sizeof b);
  int32_t largest = 0;
  for (int i = 0; i < 32; ++i) {
    const int32_t magnitude = bits[i] & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  float value;
  memcpy(&value, &largest, sizeof value);
  return value;
}

LARDER_INLINE I16 add_int(I16 a, I16 b) { return a + b; }
LARDER_INLINE int32_t reduce_add_int(I16 v) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += v[i];
  return sum;
}
LARDER_INLINE void store_int8(int8_t* p, I16 v) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(v[i]);
}
LARDER_INLINE V16 load_u8(const uint8_t* p) {
  V16 v;
  for (int i = 0; i < 16; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}
LARDER_INLINE V16 load_i8(const int8_t* p) {
  V16 v;
  for (int i = 0; i < 16; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}
// 32 bfloat16 values in pairs: the even ones, the odd ones.
LARDER_INLINE void load_bf16_pairs(const uint16_t* p, V16& even, V16& odd) {
  for (int i = 0; i < 16; ++i) {
    even[i] = bfloat16_to_float(p[2 * i]);
    odd[i] = bfloat16_to_float(p[2 * i + 1]);
  }
}

LARDER_INLINE Bytes64 load_bytes(const uint8_t* p) {
  Bytes64 v;
  for (int i = 0; i < 16; ++i) {
    v[i] = uint32_t{p[4 * i]} | uint32_t{p[4 * i + 1]} << 8 | uint32_t{p[4 * i + 2]} << 16 |
           uint32_t{p[4 * i + 3]} << 24;
  }
  return v;
}
LARDER_INLINE Bytes64 low_nibbles(Bytes64 v) { return v & 0x0F0F0F0FU; }
LARDER_INLINE Bytes64 high_nibbles(Bytes64 v) { return (v >> 4) & 0x0F0F0F0FU; }
// Each byte of low, below 16, with the kBits from kShift on of upper's byte above its 4 bits.
template <int kBits, int kShift>
LARDER_INLINE Bytes64 put_upper(Bytes64 low, Bytes64 upper) {
  return low | (upper >> kShift & (((1U << kBits) - 1U) * 0x01010101U)) << 4;
}
// Four activation bytes for every lane.
LARDER_INLINE Bytes64 broadcast4(const int8_t* p) {
  const uint32_t bits =
      uint32_t{static_cast<uint8_t>(p[0])} | uint32_t{static_cast<uint8_t>(p[1])} << 8 |
      uint32_t{static_cast<uint8_t>(p[2])} << 16 | uint32_t{static_cast<uint8_t>(p[3])} << 24;
  Bytes64 v = {};
  return v + bits;
}
// sum[i] += w[4i] * a[0] + ... + w[4i + 3] * a[3], w unsigned, a signed; exact.
LARDER_INLINE I16 dot_u8(I16 sum, Bytes64 w, Bytes64 a) {
  for (int j = 0; j < 4; ++j) {
    const I16 weight = __builtin_convertvector((w >> (8 * j)) & 0xFFU, I16);
    const I16 value = __builtin_convertvector(a << (24 - 8 * j), I16) >> 24;
    sum += weight * value;
  }
  return sum;
}
// Lane of column 4 * quad + j in byte 4 * lane + j, as float.
LARDER_INLINE V16 byte_of_quad(Bytes64 v, int j) {
  return to_float(__builtin_convertvector((v >> (8 * j)) & 0xFFU, I16));
}

// Of each 16-bit word of v the kBits from kShift on, as a word.
template <int kShift, int kBits>
LARDER_INLINE Bytes64 word_bits(Bytes64 v) {
  return (v >> kShift) & (((1U << kBits) - 1U) * 0x10001U);
}
// sum[i] += w[2i] * x[0] + w[2i + 1] * x[1], where x are two signed words; exact.
LARDER_INLINE I16 dot_words(I16 sum, Bytes64 w, const int32_t* x) {
  const I16 low = __builtin_convertvector(w << 16, I16) >> 16;
  const I16 high = __builtin_convertvector(w, I16) >> 16;
  return sum + low * static_cast<int16_t>(*x & 0xFFFF) + high * (*x >> 16);
}
// p[i], 8 of them = lane i as a word below and lane i + 8 as a word above.
LARDER_INLINE void store_word_pairs(int32_t* p, I16 v) {
  for (int i = 0; i < 8; ++i) {
    p[i] = static_cast<int32_t>((static_cast<uint32_t>(v[i]) & 0xFFFFU) |
                                static_cast<uint32_t>(v[i + 8]) << 16);
  }
}

// Byte i of the result = table[v's byte i], which is below 16.
LARDER_INLINE Bytes64 look_up(const uint8_t* table, Bytes64 v) {
  Bytes64 found;
  for (int i = 0; i < 16; ++i) {
    found[i] = uint32_t{table[v[i] & 15]} | uint32_t{table[v[i] >> 8 & 15]} << 8 |
               uint32_t{table[v[i] >> 16 & 15]} << 16 | uint32_t{table[v[i] >> 24 & 15]} << 24;
  }
  return found;
}
LARDER_INLINE void store_int(int32_t* p, I16 v) { memcpy(p, &v, sizeof v); }
// Scales of one byte each, see kv_type.h.
LARDER_INLINE V16 load_scale8(const uint8_t* p) {
  I16 bits;
  for (int i = 0; i < 16; ++i) bits[i] = (p[i] + kScale8Bias) << kScale8Shift;
  V16 v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

// 2^(p[i] - 128). Twice that has p[i] for its exponent, which at 0 stands for the subnormal 2^-127.
LARDER_INLINE V16 load_powers(const uint8_t* p) {
  I16 bits;
  for (int i = 0; i < 16; ++i) bits[i] = p[i] == 0 ? 1 << 22 : p[i] << 23;
  V16 v;
  memcpy(&v, &bits, sizeof v);
  return v * 0.5F;
}

}  // namespace larder::LARDER_ISA_NAMESPACE
