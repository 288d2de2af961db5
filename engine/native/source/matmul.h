// Products of bf16 rows with packed weights, panel by panel.
//
// Each output element is one sum over the inputs in order, whatever the number of rows: a row's
// result does not depend on its neighbours.
#pragma once
#include <algorithm>

#include "vectors.h"

constexpr int PANEL = 32;     // output columns
constexpr int MAX_ROWS = 12;  // 12 rows x 2 registers of 16 columns, 2 for weights, 1 for the input

// Memory that will be needed soon: each step of a product asks for the next `step` bytes of it.
struct Ahead {
    const char* data = nullptr;
    int64_t step = 0;
};

// acc[rows][PANEL] = a[rows][2 * num_pairs] * panel, added to what is there unless `is_first`.
template <int ROWS, bool HAS_AHEAD>
inline void multiply_rows(const bf16* a, int64_t a_stride, const bf16* panel, int num_pairs,
                          float* acc, bool is_first, Ahead ahead) {
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) {
        left[r] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * PANEL);
        right[r] = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * PANEL + 16);
    }
    for (int k = 0; k < num_pairs; ++k) {
        if (HAS_AHEAD) {
            _mm_prefetch(ahead.data, _MM_HINT_T0);
            _mm_prefetch(ahead.data + 64, _MM_HINT_T0);
            ahead.data += ahead.step;
        }
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

using RowKernel = void (*)(const bf16*, int64_t, const bf16*, int, float*, bool, Ahead);

template <bool HAS_AHEAD>
inline constexpr RowKernel ROW_KERNELS[MAX_ROWS + 1] = {
    nullptr,
    multiply_rows<1, HAS_AHEAD>,
    multiply_rows<2, HAS_AHEAD>,
    multiply_rows<3, HAS_AHEAD>,
    multiply_rows<4, HAS_AHEAD>,
    multiply_rows<5, HAS_AHEAD>,
    multiply_rows<6, HAS_AHEAD>,
    multiply_rows<7, HAS_AHEAD>,
    multiply_rows<8, HAS_AHEAD>,
    multiply_rows<9, HAS_AHEAD>,
    multiply_rows<10, HAS_AHEAD>,
    multiply_rows<11, HAS_AHEAD>,
    multiply_rows<12, HAS_AHEAD>,
};

// acc[num_rows][PANEL] = a * panel for any number of rows, in even parts; `ahead`: a panel of the
// same size that comes next, or null.
inline void multiply_panel(const bf16* a, int64_t a_stride, int num_rows, const bf16* panel,
                           int num_pairs, float* acc, bool is_first, const bf16* ahead = nullptr) {
    const RowKernel* kernels = ahead != nullptr ? ROW_KERNELS<true> : ROW_KERNELS<false>;
    const int num_parts = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
    const int64_t bytes = int64_t(num_pairs) * PANEL * 4;
    for (int part = 0, row = 0; part < num_parts; ++part) {
        const int end = int(int64_t(num_rows) * (part + 1) / num_parts);
        const Ahead own = {reinterpret_cast<const char*>(ahead) + bytes * part / num_parts,
                           PANEL * 4 / num_parts};
        kernels[end - row](a + row * a_stride, a_stride, panel, num_pairs, acc + row * PANEL,
                           is_first, own);
        row = end;
    }
}
