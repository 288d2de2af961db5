// What happens to rows between products: norms, rotations, activations.
#pragma once
#include <cmath>

#include "api.h"
#include "vectors.h"

// 1 / root mean square of x[size].
inline float inverse_rms(const float* x, int64_t size, float eps) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += 16) {
        const __m512 value =
            _mm512_maskz_loadu_ps(lanes(int(std::min<int64_t>(16, size - i))), x + i);
        sum = _mm512_fmadd_ps(value, value, sum);
    }
    return 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / float(size) + eps);
}

// store(index, mask, normed 16 values) for all of x[size].
template <class Store>
inline void norm_row(const float* x, const float* weight, int64_t size, float eps, Store store) {
    const __m512 factor = _mm512_set1_ps(inverse_rms(x, size, eps));
    for (int64_t i = 0; i < size; i += 16) {
        const __mmask16 mask = lanes(int(std::min<int64_t>(16, size - i)));
        const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor);
        store(i, mask, _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(mask, weight + i)));
    }
}

inline void norm_to_bf16(const float* x, const float* weight, int64_t size, float eps, bf16* out) {
    norm_row(x, weight, size, eps, [&](int64_t i, __mmask16 mask, __m512 value) {
        _mm256_mask_storeu_epi16(out + i, mask, round_to_bf16(value));
    });
}

inline void add_normed(const float* y, const float* weight, int64_t size, float eps, float* x) {
    norm_row(y, weight, size, eps, [&](int64_t i, __mmask16 mask, __m512 value) {
        _mm512_mask_storeu_ps(x + i, mask,
                              _mm512_add_ps(_mm512_maskz_loadu_ps(mask, x + i), value));
    });
}

// Norms (unless `weight` is null) and turns one head in float32: from `head` to `out`, which may be
// the same. `cos` and `sin` are [dim / 2].
inline void norm_and_rotate(const bf16* head, const float* weight, float eps, const float* cos,
                            const float* sin, int dim, float* buffer, bf16* out) {
    for (int i = 0; i < dim; i += 16) {
        const __mmask16 mask = lanes(dim - i);
        _mm512_mask_storeu_ps(buffer + i, mask, widen(_mm256_maskz_loadu_epi16(mask, head + i)));
    }
    if (weight != nullptr)
        norm_row(buffer, weight, dim, eps, [&](int64_t i, __mmask16 mask, __m512 value) {
            _mm512_mask_storeu_ps(buffer + i, mask, value);
        });
    const int half = dim / 2;
    for (int i = 0; i < half; i += 16) {
        const __mmask16 mask = lanes(half - i);
        const __m512 a = _mm512_maskz_loadu_ps(mask, buffer + i);
        const __m512 b = _mm512_maskz_loadu_ps(mask, buffer + half + i);
        const __m512 c = _mm512_maskz_loadu_ps(mask, cos + i);
        const __m512 s = _mm512_maskz_loadu_ps(mask, sin + i);
        _mm256_mask_storeu_epi16(out + i, mask,
                                 round_to_bf16(_mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s))));
        _mm256_mask_storeu_epi16(out + half + i, mask,
                                 round_to_bf16(_mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s))));
    }
}

// x / (1 + e^-x)
inline __m512 silu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 e =
        exp512(_mm512_min_ps(_mm512_sub_ps(_mm512_setzero_ps(), x), _mm512_set1_ps(88.0f)));
    return _mm512_div_ps(x, _mm512_add_ps(one, e));
}

// The tanh form of GELU (arXiv:1606.08415): x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline __m512 gelu_tanh(__m512 x) {
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    const __m512 inner = _mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), x);
    const __m512 exponent = _mm512_mul_ps(inner, _mm512_set1_ps(-1.5957691216f));
    const __m512 e = exp512(_mm512_min_ps(exponent, _mm512_set1_ps(88.0f)));
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}
