// A linear layer of many rows: units of work, and what becomes of their sums.
#pragma once
#include "api.h"
#include "matmul.h"
#include "quantized.h"
#include "team.h"

constexpr int CHUNK_ROWS = 96;  // rows whose sums of one panel stay in the first-level cache

inline int64_t num_panels(const Linear& linear) {
    return (int64_t(linear.out_features) + PANEL - 1) / PANEL;
}

// Sums of one panel for `num_rows` rows, overwritten; without the bias. `next`: the panel that this
// thread will probably get next.
inline void multiply_weights(const Linear& linear, int64_t panel, int64_t next, const bf16* a,
                             int num_rows, float* acc, bf16* unpacked) {
    if (linear.format != BF16) {
        multiply_quantized_panel(linear, panel, next, a, linear.in_features, num_rows, acc,
                                 unpacked);
        return;
    }
    const int num_pairs = linear.in_features / 2;
    const bf16* panels = static_cast<const bf16*>(linear.data);
    const int64_t size = int64_t(num_pairs) * 2 * PANEL;
    const bf16* ahead = next < num_panels(linear) ? panels + next * size : nullptr;
    multiply_panel(a, linear.in_features, num_rows, panels + panel * size, num_pairs, acc, true,
                   ahead);
}

inline void add_bias(const Linear& linear, int64_t panel, int num_rows, float* acc) {
    if (linear.bias == nullptr) return;
    const int64_t first = panel * PANEL;
    for (int half = 0; half < 2; ++half) {
        const int64_t left = linear.out_features - first - 16 * half;
        if (left <= 0) break;
        const __m512 bias = _mm512_maskz_loadu_ps(lanes(int(std::min<int64_t>(left, 16))),
                                                  linear.bias + first + 16 * half);
        for (int row = 0; row < num_rows; ++row) {
            float* sums = acc + row * PANEL + 16 * half;
            _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), bias));
        }
    }
}

// Shares out all panels, `width` neighbours at a time, and chunks of rows. After each,
// `store(first_row, num_rows, first_panel, sums)`; sums are [width][CHUNK_ROWS][PANEL] in `acc`.
template <class Store>
void multiply_rows_of(Member& member, const Linear& linear, const bf16* a, int64_t num_rows,
                      int width, float* acc, bf16* unpacked, Store store) {
    const int64_t num_columns = num_panels(linear) / width;
    const int64_t num_chunks = (num_rows + CHUNK_ROWS - 1) / CHUNK_ROWS;
    member.share(num_columns * num_chunks, 1, [&](int64_t unit) {
        const int64_t chunk = unit / num_columns, column = unit % num_columns;
        const int64_t first = num_rows * chunk / num_chunks;
        const int count = int(num_rows * (chunk + 1) / num_chunks - first);
        for (int side = 0; side < width; ++side) {
            float* sums = acc + side * CHUNK_ROWS * PANEL;
            const int64_t panel = column * width + side;
            const int64_t next =
                side + 1 < width ? panel + 1 : panel + 1 + (member.team.size - 1) * width;
            multiply_weights(linear, panel, next, a + first * linear.in_features, count, sums,
                             unpacked);
            add_bias(linear, panel, count, sums);
        }
        store(first, count, column * width, acc);
    });
}
