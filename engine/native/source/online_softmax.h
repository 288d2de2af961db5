// A softmax that goes along with blocks of scores (arXiv:1805.02867).
#pragma once
#include <cmath>

#include "vectors.h"

constexpr int KEYS = 64;  // tokens of one block of scores

// Scores of one row, [begin, end) of them visible: the highest, and that of `maximum`.
inline float raise_maximum(const float* left, const float* right, int begin, int end, float maximum,
                           __m512 scores[4]) {
    for (int i = 0; i < 4; ++i) scores[i] = _mm512_loadu_ps((i < 2 ? left : right) + i % 2 * 16);
    if (begin > 0 || end < KEYS) {
        const uint64_t until = end >= KEYS ? ~uint64_t(0) : (uint64_t(1) << std::max(0, end)) - 1;
        const uint64_t visible = begin >= KEYS ? 0 : until & (~uint64_t(0) << begin);
        for (int i = 0; i < 4; ++i)
            scores[i] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), __mmask16(visible >> 16 * i),
                                           scores[i]);
    }
    const __m512 top =
        _mm512_max_ps(_mm512_max_ps(scores[0], scores[1]), _mm512_max_ps(scores[2], scores[3]));
    return std::max(maximum, _mm512_reduce_max_ps(top));
}

// One row of scores to weights relative to a running maximum (of scores as they come; `scale` turns
// them into exponents of 2). Returns the factor for what was summed before.
inline float softmax_row(const float* left, const float* right, int begin, int end, float scale,
                         float& maximum, float& total, bf16* weights) {
    __m512 scores[4];
    const float highest = raise_maximum(left, right, begin, end, maximum, scores);
    if (highest == -INFINITY) {  // nothing visible so far
        for (int i = 0; i < 4; ++i)
            _mm256_storeu_si256((__m256i*)(weights + 16 * i), _mm256_setzero_si256());
        return 1.0f;
    }
    const __m512 base = _mm512_set1_ps(highest * scale), factor = _mm512_set1_ps(scale);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        const __m512 p = exp2_512(_mm512_fmsub_ps(scores[i], factor, base));
        sum = _mm512_add_ps(sum, p);
        store_bf16(weights + 16 * i, p);
    }
    const float before = maximum == highest ? 1.0f : std::exp2((maximum - highest) * scale);
    maximum = highest;
    total = total * before + _mm512_reduce_add_ps(sum);
    return before;
}
