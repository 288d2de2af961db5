// Finds the likeliest tokens of rows while the output head computes their logits.
//
// Which logits lie near the largest of a row is known when all panels are done. Until then each
// thread holds the largest that it has met, and stores a panel's logits only where one of them lies
// within the margin of that: what is near the largest of all is near every smaller one. The largest
// of each panel says at the end where to look. So the logits of a greedy row are neither written
// nor read again, but for a few dozen panels.
#pragma once
#include <algorithm>
#include <cmath>

#include "api.h"
#include "linear.h"

// Of 16 rows the largest of their PANEL sums, lane by lane; NaN where a row holds one. `left` and
// `right` are the columns that count.
inline __m512 largest_of_rows(const float* sums, __mmask16 left, __mmask16 right) {
    const __m512 least = _mm512_set1_ps(-INFINITY);
    __m512 v[16];
    uint32_t nan_rows = 0;
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
        const __m512 a = _mm512_mask_loadu_ps(least, left, sums + r * PANEL);
        const __m512 b = _mm512_mask_loadu_ps(least, right, sums + r * PANEL + 16);
        nan_rows |= uint32_t(_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0) << r;
        v[r] = _mm512_max_ps(a, b);
    }
    // A transposition in which each step keeps the larger of two columns instead of both.
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r)
        v[r] = _mm512_max_ps(_mm512_unpacklo_ps(v[2 * r], v[2 * r + 1]),
                             _mm512_unpackhi_ps(v[2 * r], v[2 * r + 1]));
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
        const __m512d a = _mm512_castps_pd(v[2 * r]), b = _mm512_castps_pd(v[2 * r + 1]);
        v[r] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int step = 0; step < 2; ++step)
#pragma GCC unroll 2
        for (int r = 0; r < 2 >> step; ++r)
            v[r] = _mm512_max_ps(_mm512_shuffle_f32x4(v[2 * r], v[2 * r + 1], 0x88),
                                 _mm512_shuffle_f32x4(v[2 * r], v[2 * r + 1], 0xdd));
    return _mm512_mask_mov_ps(v[0], __mmask16(nan_rows), _mm512_set1_ps(NAN));
}

class GreedySearch {
  public:
    static constexpr int GROUP = 16;  // rows that are looked at together

    GreedySearch(const Linear& head, const Greedy& greedy, int64_t num_rows, int num_threads,
                 float* logits, char* memory)
        : head_(head),
          greedy_(greedy),
          num_rows_(num_rows),
          stride_(padded(num_rows)),
          logits_(logits),
          margins_(reinterpret_cast<float*>(memory)),
          so_far_(margins_ + stride_),
          largest_(so_far_ + stride_ * num_threads) {}

    static int64_t bytes(const Linear& head, int64_t num_rows, int num_threads) {
        return padded(num_rows) * (1 + num_threads + num_panels(head)) * 4;
    }

    // Before a thread's first `take`.
    void begin(int thread) { std::fill_n(so_far_ + thread * stride_, stride_, -INFINITY); }

    // By how much a logit of `row`, which was rounded, must exceed another one to be larger for
    // certain; the proof is OutputHead.margins' (engine/models/output_head.py).
    void measure(int64_t row, const float* exact, const bf16* rounded) {
        __m512 errors = _mm512_setzero_ps(), squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < head_.in_features; i += 16) {
            const __mmask16 mask = lanes(int(std::min<int64_t>(16, head_.in_features - i)));
            const __m512 x = _mm512_maskz_loadu_ps(mask, exact + i);
            const __m512 error =
                _mm512_sub_ps(x, widen(_mm256_maskz_loadu_epi16(mask, rounded + i)));
            errors = _mm512_fmadd_ps(error, error, errors);
            squares = _mm512_fmadd_ps(x, x, squares);
        }
        const float summing = 2 * float(head_.in_features) * 0x1p-24f;
        const float off = std::sqrt(_mm512_reduce_add_ps(errors)) +
                          summing * std::sqrt(_mm512_reduce_add_ps(squares));
        margins_[row] = off * (2 * greedy_.largest_norm);
    }

    // Sums of a panel, [count][PANEL], of rows from `first` on.
    void take(int thread, int64_t first, int count, int64_t panel, const float* sums) {
        const int64_t num_columns = head_.out_features - panel * PANEL;
        const __mmask16 left = lanes(int(std::min<int64_t>(16, num_columns)));
        const __mmask16 right = lanes(int(std::clamp<int64_t>(num_columns - 16, 0, 16)));
        // Whole groups are read, which the memory of the sums has room for.
        static_assert(CHUNK_ROWS % GROUP == 0);
        for (int r = 0; r < count; r += GROUP) {
            const __mmask16 rows = lanes(count - r);
            const __m512 largest = largest_of_rows(sums + r * PANEL, left, right);
            _mm512_mask_storeu_ps(largest_ + panel * stride_ + first + r, rows, largest);
            float* so_far = so_far_ + thread * stride_ + first + r;
            const __m512 known = _mm512_maskz_loadu_ps(rows, so_far);
            // Of two, the second one is kept beside NaN.
            _mm512_mask_storeu_ps(so_far, rows, _mm512_max_ps(largest, known));
            const __m512 margins = _mm512_maskz_loadu_ps(rows, margins_ + first + r);
            const __mmask16 is_far =
                _mm512_cmp_ps_mask(largest, _mm512_sub_ps(known, margins), _CMP_LT_OQ);
            uint32_t stored = rows & (~is_far | wishing(first + r, rows, KEEP_LOGITS));
            for (; stored != 0; stored &= stored - 1) {
                const int row = r + __builtin_ctz(stored);
                float* target = logits_ + (first + row) * head_.out_features + panel * PANEL;
                _mm512_mask_storeu_ps(target, left, _mm512_loadu_ps(sums + row * PANEL));
                _mm512_mask_storeu_ps(target + 16, right, _mm512_loadu_ps(sums + row * PANEL + 16));
            }
        }
    }

    int64_t num_groups() const { return stride_ / GROUP; }

    // The tokens of a group's rows, after all panels.
    void choose(int64_t group, const float* exact) {
        const int64_t first = group * GROUP;
        const __mmask16 rows = lanes(int(std::min<int64_t>(GROUP, num_rows_ - first)));
        const __mmask16 sought = wishing(first, rows, PICK_TOKEN);
        if (sought == 0) return;
        Near near[GROUP];
        find_near(first, sought, near);
        for (uint32_t left = sought; left != 0; left &= left - 1) {
            const int lane = __builtin_ctz(left);
            const int64_t row = first + lane;
            greedy_.tokens[row] = likeliest(near[lane], exact + row * head_.in_features);
        }
    }

  private:
    static constexpr int MAX_NEAR = 8;  // of engine/sampling/kernels.py

    // Tokens near the largest logit of a row, the first ones of `count` in the order of ids.
    struct Near {
        int64_t count = 0;
        int64_t ids[MAX_NEAR];
    };

    static int64_t padded(int64_t num_rows) { return (num_rows + GROUP - 1) / GROUP * GROUP; }

    // Which of 16 rows have a wish.
    __mmask16 wishing(int64_t first, __mmask16 rows, RowWish wish) const {
        return _mm_test_epi8_mask(_mm_maskz_loadu_epi8(rows, greedy_.wishes + first),
                                  _mm_set1_epi8(char(wish)));
    }

    // The largest logit of each of 16 rows, and which rows have a finite one and no NaN.
    __m512 largest_of_all(int64_t first, __mmask16& is_finite) const {
        __m512 largest = _mm512_set1_ps(-INFINITY);
        __mmask16 is_nan = 0;
        for (int64_t panel = 0; panel < num_panels(head_); ++panel) {
            const __m512 x = _mm512_loadu_ps(largest_ + panel * stride_ + first);
            is_nan |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            largest = _mm512_max_ps(x, largest);
        }
        constexpr int INFINITIES = 0x08 | 0x10;
        is_finite = __mmask16(~is_nan & ~_mm512_fpclass_ps_mask(largest, INFINITIES));
        return largest;
    }

    // As sampling_api.h's find_near_largest says, of up to 16 rows at once.
    void find_near(int64_t first, __mmask16 open, Near* near) const {
        __mmask16 is_finite;
        const __m512 largest = largest_of_all(first, is_finite);
        // One that isn't finite tells nothing: then the logits decide as they are.
        __m512 margins = _mm512_loadu_ps(margins_ + first);
        constexpr int INFINITIES_AND_NANS = 0x01 | 0x08 | 0x10 | 0x80;
        margins = _mm512_maskz_mov_ps(
            __mmask16(~_mm512_fpclass_ps_mask(margins, INFINITIES_AND_NANS)), margins);
        open &= is_finite;
        while (open != 0) {
            const __m512 bounds = _mm512_sub_ps(largest, margins);
            alignas(64) float bound[GROUP];
            _mm512_store_ps(bound, bounds);
            for (uint32_t left = open; left != 0; left &= left - 1)
                near[__builtin_ctz(left)].count = 0;
            for (int64_t panel = 0; panel < num_panels(head_); ++panel) {
                const __m512 x = _mm512_loadu_ps(largest_ + panel * stride_ + first);
                uint32_t found = _mm512_mask_cmp_ps_mask(open, x, bounds, _CMP_GE_OQ);
                for (; found != 0; found &= found - 1) {
                    const int lane = __builtin_ctz(found);
                    collect(first + lane, panel, bound[lane], near[lane]);
                }
            }
            // Too many: once more with half the margin, unless that changes nothing.
            open &= _mm512_cmp_ps_mask(bounds, largest, _CMP_LT_OQ);
            for (uint32_t left = open; left != 0; left &= left - 1) {
                const int lane = __builtin_ctz(left);
                if (near[lane].count <= MAX_NEAR) open &= __mmask16(~(1u << lane));
            }
            margins = _mm512_mul_ps(margins, _mm512_set1_ps(0.5f));
        }
    }

    void collect(int64_t row, int64_t panel, float bound, Near& near) const {
        const int64_t begin = panel * PANEL;
        const int64_t end = std::min<int64_t>(begin + PANEL, head_.out_features);
        const float* logits = logits_ + row * head_.out_features;
        for (int64_t i = begin; i < end; ++i) {
            if (!(logits[i] >= bound)) continue;
            if (near.count < MAX_NEAR) near.ids[near.count] = i;
            ++near.count;
        }
    }

    // The one with the largest exact logit, of equals the first; -1 if there is none.
    int64_t likeliest(const Near& near, const float* exact) const {
        if (near.count == 0) return -1;
        if (near.count == 1 || greedy_.table == nullptr) return near.ids[0];
        int64_t best = 0;
        float most = -INFINITY;
        for (int64_t i = 0; i < std::min<int64_t>(near.count, MAX_NEAR); ++i) {
            const float logit = exact_logit(near.ids[i], exact);
            if (i > 0 && !(logit > most)) continue;
            best = near.ids[i];
            most = logit;
        }
        return best;
    }

    float exact_logit(int64_t token, const float* exact) const {
        const bf16* weights = greedy_.table + token * head_.in_features;
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < head_.in_features; i += 16) {
            const __mmask16 mask = lanes(int(std::min<int64_t>(16, head_.in_features - i)));
            sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, exact + i),
                                  widen(_mm256_maskz_loadu_epi16(mask, weights + i)), sum);
        }
        return _mm512_reduce_add_ps(sum);
    }

    const Linear& head_;
    const Greedy& greedy_;
    const int64_t num_rows_, stride_;
    float* const logits_;   // [num_rows][out_features]
    float* const margins_;  // [stride]
    float* const so_far_;   // [num_threads][stride] largest logit that a thread has met
    float* const largest_;  // [num_panels][stride] largest of a panel
};
