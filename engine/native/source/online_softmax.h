// A softmax that goes along with blocks of scores (arXiv:1805.02867).
#pragma once
#include <cmath>

#include "vectors.h"

constexpr int KEYS = 64;  // tokens of one block of scores

// Weights may be so many powers of two above 1 before the maximum is raised: sums are then scaled
// again for few rows only.
constexpr float MAX_EXPONENT = 8.0f;

// Scores of one row, those outside [begin, end) as if infinitely low.
inline void load_scores(const float* left, const float* right, int begin, int end,
                        __m512 scores[4]) {
    for (int i = 0; i < 4; ++i) scores[i] = _mm512_loadu_ps((i < 2 ? left : right) + i % 2 * 16);
    if (begin <= 0 && end >= KEYS) return;
    const uint64_t until = end >= KEYS ? ~uint64_t(0) : (uint64_t(1) << std::max(0, end)) - 1;
    const uint64_t visible = begin >= KEYS ? 0 : until & (~uint64_t(0) << std::max(0, begin));
    for (int i = 0; i < 4; ++i)
        scores[i] =
            _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), __mmask16(visible >> 16 * i), scores[i]);
}

// One row of scores to weights relative to a maximum that rises now and then (of scores as they
// come; `scale` turns them into exponents of 2), and to the sums of weights in 16 lanes of
// `totals`. Returns the factor for what was summed before.
inline float softmax_row(const float* left, const float* right, int begin, int end, float scale,
                         float& maximum, float* totals, bf16* weights) {
    __m512 scores[4];
    load_scores(left, right, begin, end, scores);
    const __m512 top =
        _mm512_max_ps(_mm512_max_ps(scores[0], scores[1]), _mm512_max_ps(scores[2], scores[3]));
    __m512 total = _mm512_loadu_ps(totals);
    float before = 1.0f;
    const __m512 limit = _mm512_set1_ps(maximum + MAX_EXPONENT / scale);
    if (_mm512_cmp_ps_mask(top, limit, _CMP_GT_OQ)) {
        const float highest = _mm512_reduce_max_ps(top);
        before = std::exp2((maximum - highest) * scale);
        total = _mm512_mul_ps(total, _mm512_set1_ps(before));
        maximum = highest;
    }
    if (maximum == -INFINITY) {  // nothing visible so far
        for (int i = 0; i < 2; ++i) _mm512_storeu_si512(weights + 32 * i, _mm512_setzero_si512());
        return before;
    }
    const __m512 base = _mm512_set1_ps(maximum * scale), factor = _mm512_set1_ps(scale);
    for (int i = 0; i < 4; ++i) scores[i] = exp2_512(_mm512_fmsub_ps(scores[i], factor, base));
    store_bf16(weights, scores[0], scores[1]);
    store_bf16(weights + 32, scores[2], scores[3]);
    total = _mm512_add_ps(total, _mm512_add_ps(_mm512_add_ps(scores[0], scores[1]),
                                               _mm512_add_ps(scores[2], scores[3])));
    _mm512_storeu_ps(totals, total);
    return before;
}
