// Products of bf16 rows with packed weights, panel by panel.
//
// Each output element is one sum over the inputs in order, whatever the number of rows: a row's
// result does not depend on its neighbours.
#pragma once
#include <algorithm>

#include "vectors.h"

constexpr int PANEL = 32;     // output columns
constexpr int MAX_ROWS = 12;  // 12 rows x 2 registers of 16 columns, 2 for weights, 1 for the input

// acc[rows][PANEL] (+)= a[rows][2 * num_pairs] * panel; `is_first`: overwrite.
template <int ROWS>
inline void multiply_rows(const bf16* a, int64_t a_stride, const bf16* panel, int num_pairs,
                          float* acc, bool is_first) {
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) {
        left[r] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * PANEL);
        right[r] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * PANEL + 16);
    }
    for (int k = 0; k < num_pairs; ++k) {
        const __m512i b0 = _mm512_loadu_si512(panel + k * 2 * PANEL);
        const __m512i b1 = _mm512_loadu_si512(panel + k * 2 * PANEL + PANEL);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            int32_t pair;
            __builtin_memcpy(&pair, a + r * a_stride + 2 * k, 4);
            const __m512i both = _mm512_set1_epi32(pair);
            left[r] = dot_pairs(left[r], both, b0);
            right[r] = dot_pairs(right[r], both, b1);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) {
        _mm512_storeu_ps(acc + r * PANEL, left[r]);
        _mm512_storeu_ps(acc + r * PANEL + 16, right[r]);
    }
}

using RowKernel = void (*)(const bf16*, int64_t, const bf16*, int, float*, bool);

inline constexpr RowKernel ROW_KERNELS[MAX_ROWS + 1] = {
    nullptr,           multiply_rows<1>, multiply_rows<2>,  multiply_rows<3>,  multiply_rows<4>,
    multiply_rows<5>,  multiply_rows<6>, multiply_rows<7>,  multiply_rows<8>,  multiply_rows<9>,
    multiply_rows<10>, multiply_rows<11>, multiply_rows<12>,
};

// acc[num_rows][PANEL] (+)= a * panel for any number of rows, in even parts.
inline void multiply_panel(const bf16* a, int64_t a_stride, int num_rows, const bf16* panel,
                           int num_pairs, float* acc, bool is_first) {
    const int num_parts = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int part = 0, row = 0; part < num_parts; ++part) {
        const int end = int(int64_t(num_rows) * (part + 1) / num_parts);
        ROW_KERNELS[end - row](a + row * a_stride, a_stride, panel, num_pairs, acc + row * PANEL,
                               is_first);
        row = end;
    }
}
