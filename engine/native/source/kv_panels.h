// Keys and values of one block of tokens, laid out as panels (matmul.h).
#pragma once
#include "matmul.h"

// Rows [16] of 16 pairs each to pairs of 16 rows.
inline void transpose_pairs(__m512i rows[16]) {
    __m512i t[16];
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        rows[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        rows[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

// keys[token], for tokens in [skipped, num_keys), to panels [KEYS / PANEL][dim / 2][PANEL][2];
// zeros for other tokens.
inline void pack_keys(const bf16* const* keys, int skipped, int num_keys, int dim, bf16* panels) {
    const int num_pairs = dim / 2;
    for (int group = 0; group < (num_keys + 15) / 16; ++group) {
        int32_t* panel = reinterpret_cast<int32_t*>(panels) +
                         int64_t(group / 2) * num_pairs * PANEL + group % 2 * 16;
        for (int first = 0; first < num_pairs; first += 16) {
            const int count = std::min(16, num_pairs - first);
            __m512i rows[16];
            for (int i = 0; i < 16; ++i) {
                const int token = group * 16 + i;
                rows[i] = token >= skipped && token < num_keys
                              ? _mm512_maskz_loadu_epi32(lanes(count), keys[token] + 2 * first)
                              : _mm512_setzero_si512();
            }
            transpose_pairs(rows);
            for (int i = 0; i < count; ++i)
                _mm512_storeu_si512(panel + int64_t(first + i) * PANEL, rows[i]);
        }
    }
}

// values[token] likewise, to panels [dim / PANEL][num_pairs][PANEL][2] of pairs of tokens.
inline void pack_values(const bf16* const* values, int skipped, int num_keys, int dim,
                        bf16* panels) {
    alignas(64) static const uint16_t LOW[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                 37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(LOW);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const int num_pairs = (num_keys + 1) / 2;
    for (int column = 0; column < dim; column += PANEL) {
        const int width = std::min(PANEL, dim - column);
        const __mmask32 mask = width == 32 ? 0xffffffffu : (1u << width) - 1;
        bf16* panel = panels + int64_t(column / PANEL) * num_pairs * 2 * PANEL;
        for (int pair = 0; pair < num_pairs; ++pair) {
            __m512i v[2];
            for (int i = 0; i < 2; ++i) {
                const int token = 2 * pair + i;
                v[i] = token >= skipped && token < num_keys
                           ? _mm512_maskz_loadu_epi16(mask, values[token] + column)
                           : _mm512_setzero_si512();
            }
            bf16* place = panel + pair * 2 * PANEL;
            _mm512_storeu_si512(place, _mm512_permutex2var_epi16(v[0], low, v[1]));
            _mm512_storeu_si512(place + PANEL, _mm512_permutex2var_epi16(v[0], high, v[1]));
        }
    }
}
