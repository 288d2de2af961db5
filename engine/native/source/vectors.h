// AVX-512 helpers: bf16 pairs, conversions, exp, reductions.
#pragma once
#include <immintrin.h>

#include <cstdint>

using bf16 = uint16_t;

// Bytes up to the next cache line.
inline int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline float to_float(bf16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float result;
    __builtin_memcpy(&result, &bits, 4);
    return result;
}

// acc + a0 * b0 + a1 * b1 for 16 pairs.
inline __m512 dot_pairs(__m512 acc, __m512i a, __m512i b) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#else
    const __m512i high = _mm512_set1_epi32(int(0xffff0000));
    acc = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                          _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), acc);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                           _mm512_castsi512_ps(_mm512_and_si512(b, high)), acc);
#endif
}

// Round to nearest even; NaN stays NaN.
inline __m256i round_to_bf16(__m512 x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

inline __m512 widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

inline __m512 load_bf16(const bf16* p) { return widen(_mm256_loadu_si256((const __m256i*)p)); }

// Two vectors side by side.
inline void store_bf16(bf16* p, __m512 low, __m512 high) {
#ifdef __AVX512BF16__
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
#else
    _mm256_storeu_si256((__m256i*)p, round_to_bf16(low));
    _mm256_storeu_si256((__m256i*)(p + 16), round_to_bf16(high));
#endif
}

inline void store_bf16(bf16* p, __m512 x) { _mm256_storeu_si256((__m256i*)p, round_to_bf16(x)); }

// The first `count` lanes, up to 16.
inline __mmask16 lanes(int count) {
    return count >= 16 ? __mmask16(0xffff) : __mmask16((1u << count) - 1);
}

// e^x within 2 ulp for x <= 88; 0 below -87. Range reduction by ln 2 and a polynomial of degree 5
// (minimax on [-ln 2 / 2, ln 2 / 2]).
inline __m512 exp512(__m512 x) {
    const __m512 clamped = _mm512_max_ps(x, _mm512_set1_ps(-87.33f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(clamped, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), clamped);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    const __m512 scaled = _mm512_scalef_ps(p, n);
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33f), _CMP_GT_OQ), scaled);
}

// 2^x within 3e-6 of itself; 0 for -infinity. A polynomial of degree 4 (minimax on [0, 1)) of what
// is left of x above a whole number.
inline __m512 exp2_512(__m512 x) {
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(1.353417e-2f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.201146e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4144276e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9300383e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.00000259f));
    return _mm512_scalef_ps(p, x);
}
