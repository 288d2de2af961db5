// Products of bf16 rows with quantized panels, decoded in registers, or once for many rows.
//
// int8 panel: [in / 2][32 columns][2] codes; Linear::scales holds one scale per column.
// int4 panel: groups of 32 inputs, each [4 blocks of 8 inputs][2 halves][16 columns][2] 16-bit
// words, in which nibble j is the code of input pair j of the block, then [32] scales in bf16.
// int6 panel: groups of 64 inputs, each [4 blocks of 16 inputs][3][2 halves][16 columns][2] 16-bit
// words, then scales as in int4. Word i holds the codes of input pairs 2 i and 2 i + 1 in bits 0-5
// and 6-11; bits 12-15 of words 0 and 1 are the lower ones of pairs 6 and 7, whose upper two are
// bits 12-13 and 14-15 of word 2. Codes become bf16 without rounding. Sums of a segment of inputs
// are scaled and added up in float32; segments are independent chains, which hides the latency of
// the dot products. As in matmul.h a row's result does not depend on its neighbours.
#pragma once
#include "api.h"
#include "matmul.h"

struct Int8Codes {
    static constexpr int SEGMENT = 64;  // inputs whose products are summed before they are scaled
    static constexpr int BLOCK = 2;     // inputs decoded at once
    static constexpr int BLOCK_BYTES = BLOCK * PANEL;
    static constexpr int SCALE_BYTES = 0;  // behind the codes of a segment
    static constexpr int SCALE_STEP = 0;   // from a segment's scales to the next one's; 0: float

    static __m512i widen_codes(const uint8_t* p) {
        const __m512 low =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
        const __m512 high =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(p + 16))));
#ifdef __AVX512BF16__
        return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
        return _mm512_inserti64x4(_mm512_castsi256_si512(round_to_bf16(low)), round_to_bf16(high),
                                  1);
#endif
    }

    // Columns 0-15 and 16-31 of input pair `pair` of a block.
    struct Block {
        __m512i left, right;
        explicit Block(const uint8_t* p) : left(widen_codes(p)), right(widen_codes(p + PANEL)) {}
        __m512i left_pair(int) const { return left; }
        __m512i right_pair(int) const { return right; }
    };
};

// Values of the int4 codes (CODEBOOKS in engine/quantization/weight.py) in bf16, twice: only the
// low 5 bits of an index count, and the upper one of them is the next nibble's.
alignas(64) inline constexpr bf16 INT4_VALUES[32] = {
    0xc2ee, 0xc2ae, 0xc284, 0xc248, 0xc20c, 0xc1a8, 0xc110, 0xc000, 0x40e0, 0x4170, 0x41e0,
    0x422c, 0x426c, 0x4296, 0x42c4, 0x42fe, 0xc2ee, 0xc2ae, 0xc284, 0xc248, 0xc20c, 0xc1a8,
    0xc110, 0xc000, 0x40e0, 0x4170, 0x41e0, 0x422c, 0x426c, 0x4296, 0x42c4, 0x42fe,
};

struct Int4Codes {
    static constexpr int SEGMENT = 32;
    static constexpr int BLOCK = 8;
    static constexpr int BLOCK_BYTES = BLOCK * PANEL / 2;
    static constexpr int SCALE_BYTES = PANEL * 2;
    static constexpr int SCALE_STEP = SEGMENT * PANEL / 2 + SCALE_BYTES;  // bf16

    struct Block {
        __m512i values, left, right;
        explicit Block(const uint8_t* p)
            : values(_mm512_load_si512(INT4_VALUES)),
              left(_mm512_loadu_si512(p)),
              right(_mm512_loadu_si512(p + 64)) {}
        __m512i left_pair(int pair) const { return decode(left, pair); }
        __m512i right_pair(int pair) const { return decode(right, pair); }
        __m512i decode(__m512i words, int pair) const {
            return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * pair), values);
        }
    };
};

// Values of the int6 codes, 4 code - 127, in bf16.
struct Int6Values {
    alignas(64) bf16 of[64] = {};
    constexpr Int6Values() {
        for (int code = 0; code < 64; ++code) {
            const int value = 4 * code - 127, size = value < 0 ? -value : value;
            int exponent = 0;
            while (size >> (exponent + 1) != 0) ++exponent;
            const int fraction = (size << (7 - exponent)) & 0x7f;
            of[code] = bf16((value < 0 ? 0x8000 : 0) | (127 + exponent) << 7 | fraction);
        }
    }
};
inline constexpr Int6Values INT6_VALUES;

struct Int6Codes {
    static constexpr int SEGMENT = 64;
    static constexpr int BLOCK = 16;
    static constexpr int BLOCK_BYTES = BLOCK * PANEL * 6 / 8;
    static constexpr int SCALE_BYTES = PANEL * 2;
    static constexpr int SCALE_STEP = SEGMENT * PANEL * 6 / 8 + SCALE_BYTES;  // bf16

    struct Block {
        const uint8_t* words;
        __m512i negative, positive;
        explicit Block(const uint8_t* p)
            : words(p),
              negative(_mm512_load_si512(INT6_VALUES.of)),
              positive(_mm512_load_si512(INT6_VALUES.of + 32)) {}
        __m512i left_pair(int pair) const { return decode(words, pair); }
        __m512i right_pair(int pair) const { return decode(words + 64, pair); }
        // Of an index only the low 6 bits count.
        __m512i decode(const uint8_t* p, int pair) const {
            __m512i index;
            if (pair < 6) {
                index = _mm512_srli_epi16(word(p, pair / 2), 6 * (pair % 2));
            } else {
                const __m512i upper = _mm512_srli_epi16(word(p, 2), pair == 6 ? 8 : 10);
                const __m512i lower = _mm512_srli_epi16(word(p, pair - 6), 12);
                constexpr int LOWER_OR_UPPER_IN_MASK = 0xf8;  // a | (b & c)
                index = _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi16(0x30),
                                                  LOWER_OR_UPPER_IN_MASK);
            }
            return _mm512_permutex2var_epi16(negative, index, positive);
        }
        static __m512i word(const uint8_t* p, int i) { return _mm512_loadu_si512(p + i * 128); }
    };
};

// The codes of a panel after `unpack`: bf16 pairs, without the scales.
template <class Codes>
struct UnpackedCodes {
    static constexpr int SEGMENT = Codes::SEGMENT;
    static constexpr int BLOCK = 2;
    static constexpr int BLOCK_BYTES = BLOCK * PANEL * 2;
    static constexpr int SCALE_BYTES = 0;
    static constexpr int SCALE_STEP = Codes::SCALE_STEP;

    struct Block {
        __m512i left, right;
        explicit Block(const uint8_t* p)
            : left(_mm512_loadu_si512(p)), right(_mm512_loadu_si512(p + 64)) {}
        __m512i left_pair(int) const { return left; }
        __m512i right_pair(int) const { return right; }
    };
};

// unpacked[in / 2][PANEL][2] of a panel.
template <class Codes>
inline void unpack(const uint8_t* panel, int num_inputs, bf16* unpacked) {
    for (int first = 0; first < num_inputs; first += Codes::SEGMENT, panel += Codes::SCALE_BYTES) {
        const int end = std::min(first + Codes::SEGMENT, num_inputs);
        for (int k = first; k < end; k += Codes::BLOCK, panel += Codes::BLOCK_BYTES) {
            const typename Codes::Block block(panel);
#pragma GCC unroll 8
            for (int pair = 0; pair < Codes::BLOCK / 2; ++pair, unpacked += 2 * PANEL) {
                _mm512_storeu_si512(unpacked, block.left_pair(pair));
                _mm512_storeu_si512(unpacked + PANEL, block.right_pair(pair));
            }
        }
    }
}

// Of 16 columns from `first` on.
template <class Codes>
inline __m512 load_scales(const uint8_t* scales, int first) {
    if constexpr (Codes::SCALE_STEP > 0) {
        return load_bf16(reinterpret_cast<const bf16*>(scales) + first);
    } else {
        return _mm512_loadu_ps(reinterpret_cast<const float*>(scales) + first);
    }
}

// acc[ROWS][PANEL] = a[ROWS][num_inputs] * panel; memory `ahead` bytes on is asked for, too.
template <class Codes, int ROWS>
inline void multiply_quantized_rows(const bf16* a, int64_t a_stride, const uint8_t* panel,
                                    int num_inputs, const uint8_t* scales, float* acc,
                                    int64_t ahead) {
    for (int first = 0; first < num_inputs; first += Codes::SEGMENT) {
        const int end = std::min(first + Codes::SEGMENT, num_inputs);
        __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) left[r] = right[r] = _mm512_setzero_ps();
        for (int k = first; k < end; k += Codes::BLOCK, panel += Codes::BLOCK_BYTES) {
            for (int line = 0; line < Codes::BLOCK_BYTES; line += 64) {
                _mm_prefetch(reinterpret_cast<const char*>(panel) + ahead + line, _MM_HINT_T0);
            }
            const typename Codes::Block block(panel);
#pragma GCC unroll 8
            for (int pair = 0; pair < Codes::BLOCK / 2; ++pair) {
                const __m512i b0 = block.left_pair(pair), b1 = block.right_pair(pair);
#pragma GCC unroll 12
                for (int r = 0; r < ROWS; ++r) {
                    int32_t inputs;
                    __builtin_memcpy(&inputs, a + r * a_stride + k + 2 * pair, 4);
                    const __m512i both = _mm512_set1_epi32(inputs);
                    left[r] = dot_pairs(left[r], both, b0);
                    right[r] = dot_pairs(right[r], both, b1);
                }
            }
        }
        const __m512 scale0 = load_scales<Codes>(scales, 0);
        const __m512 scale1 = load_scales<Codes>(scales, 16);
        panel += Codes::SCALE_BYTES;
        scales += Codes::SCALE_STEP;
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            float* sums = acc + r * PANEL;
            const __m512 sum0 = first ? _mm512_loadu_ps(sums) : _mm512_setzero_ps();
            const __m512 sum1 = first ? _mm512_loadu_ps(sums + 16) : _mm512_setzero_ps();
            _mm512_storeu_ps(sums, _mm512_fmadd_ps(left[r], scale0, sum0));
            _mm512_storeu_ps(sums + 16, _mm512_fmadd_ps(right[r], scale1, sum1));
        }
    }
}

using QuantizedKernel = void (*)(const bf16*, int64_t, const uint8_t*, int, const uint8_t*, float*,
                                 int64_t);

template <class Codes>
inline constexpr QuantizedKernel QUANTIZED_KERNELS[MAX_ROWS + 1] = {
    nullptr,
    multiply_quantized_rows<Codes, 1>,
    multiply_quantized_rows<Codes, 2>,
    multiply_quantized_rows<Codes, 3>,
    multiply_quantized_rows<Codes, 4>,
    multiply_quantized_rows<Codes, 5>,
    multiply_quantized_rows<Codes, 6>,
    multiply_quantized_rows<Codes, 7>,
    multiply_quantized_rows<Codes, 8>,
    multiply_quantized_rows<Codes, 9>,
    multiply_quantized_rows<Codes, 10>,
    multiply_quantized_rows<Codes, 11>,
    multiply_quantized_rows<Codes, 12>,
};

inline int64_t quantized_panel_bytes(const Linear& w) {
    const int64_t inputs = w.in_features;
    if (w.format == INT8) return inputs * PANEL;
    if (w.format == INT6) return inputs / Int6Codes::SEGMENT * Int6Codes::SCALE_STEP;
    return inputs / Int4Codes::SEGMENT * Int4Codes::SCALE_STEP;
}

template <class Codes>
inline void multiply_quantized(const bf16* a, int64_t a_stride, int num_rows, const uint8_t* panel,
                               int num_inputs, const uint8_t* scales, float* acc, int64_t ahead,
                               bf16* unpacked) {
    const QuantizedKernel* kernels = QUANTIZED_KERNELS<Codes>;
    const int num_parts = (num_rows + MAX_ROWS - 1) / MAX_ROWS;
    if (num_parts > 1) {
        unpack<Codes>(panel, num_inputs, unpacked);
        panel = reinterpret_cast<const uint8_t*>(unpacked);
        kernels = QUANTIZED_KERNELS<UnpackedCodes<Codes>>;
        ahead = 0;
    }
    for (int part = 0, row = 0; part < num_parts; ++part) {
        const int end = int(int64_t(num_rows) * (part + 1) / num_parts);
        kernels[end - row](a + row * a_stride, a_stride, panel, num_inputs, scales,
                           acc + row * PANEL, ahead);
        row = end;
    }
}

// acc[num_rows][PANEL], overwritten: the finished sums of one panel, without the bias. `next`: the
// panel that comes next; `unpacked`: memory of [in_features][PANEL].
inline void multiply_quantized_panel(const Linear& w, int64_t panel, int64_t next, const bf16* a,
                                     int64_t a_stride, int num_rows, float* acc, bf16* unpacked) {
    const int64_t size = quantized_panel_bytes(w);
    const uint8_t* data = static_cast<const uint8_t*>(w.data) + panel * size;
    const int64_t ahead = next * PANEL < w.out_features ? (next - panel) * size : 0;
    const auto multiply = [&](auto codes, const uint8_t* scales) {
        multiply_quantized<decltype(codes)>(a, a_stride, num_rows, data, w.in_features, scales, acc,
                                            ahead, unpacked);
    };
    if (w.format == INT8)
        multiply(Int8Codes(), reinterpret_cast<const uint8_t*>(w.scales + panel * PANEL));
    else if (w.format == INT6)
        multiply(Int6Codes(), data + Int6Codes::SCALE_STEP - Int6Codes::SCALE_BYTES);
    else
        multiply(Int4Codes(), data + Int4Codes::SCALE_STEP - Int4Codes::SCALE_BYTES);
}
