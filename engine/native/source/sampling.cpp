// Chooses tokens from float32 logits: what lies near the largest, and random draws through
// temperature, top-k, top-p and min-p. No sort: the threshold of a filter is found by bisection
// over the bits of the weights, with ever fewer candidates. A row is one thread's.
#include "sampling_api.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 256;  // tokens: what is scanned for one place
constexpr int LANES = 16;
// Below, one thread takes some tenths of a millisecond at most, and waits for nobody: where the
// cores are busy with something else, the end of a parallel region takes far longer than that.
constexpr int64_t MAX_SEARCHED_ALONE = 1 << 22;  // logits
constexpr int32_t MAX_DRAWN_ALONE = 4;           // rows

struct Params {
    float temperature;
    int64_t top_k;
    double top_p;
    float min_p;
    double uniform;
};

// What one thread works with.
struct Scratch {
    float* weights;      // [num_blocks * BLOCK]
    int32_t* keys;       // [num_blocks * BLOCK]
    double* block_sums;  // [num_blocks]
};

int64_t blocks_of(int64_t vocab_size) { return (vocab_size + BLOCK - 1) / BLOCK; }

// -infinity beyond the end.
__m512 load_logits(const float* row, int64_t begin, int64_t end) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY),
                                lanes(int(std::min<int64_t>(end - begin, LANES))), row + begin);
}

// The largest of [begin, end), a multiple of LANES apart from the row's end; NaN sets `has_nan`.
float largest_of(const float* row, int64_t begin, int64_t end, bool& has_nan) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    __mmask16 unordered = 0;
    for (int64_t i = begin; i < end; i += LANES) {
        const __m512 x = load_logits(row, i, end);
        unordered |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, x);
    }
    has_nan |= unordered != 0;
    return _mm512_reduce_max_ps(most);
}

// Of the whole row and, in `block_largest`, of each block; NaN if the row holds one.
float largest_of_row(const float* row, int64_t vocab_size, float* block_largest) {
    float most = -INFINITY;
    bool has_nan = false;
    for (int64_t block = 0; block < blocks_of(vocab_size); ++block) {
        const int64_t begin = block * BLOCK;
        block_largest[block] = largest_of(row, begin, std::min(begin + BLOCK, vocab_size), has_nan);
        most = std::max(most, block_largest[block]);
    }
    return has_nan ? NAN : most;
}

// Integers in the order of the floats.
__m512i keys_of(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    return _mm512_xor_si512(bits, _mm512_srli_epi32(_mm512_srai_epi32(bits, 31), 1));
}

int32_t key_of(float x) {
    return _mm_cvtsi128_si32(_mm512_castsi512_si128(keys_of(_mm512_set1_ps(x))));
}

float value_of(int32_t key) {
    const int32_t bits = key ^ int32_t(uint32_t(key >> 31) >> 1);
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

__m512d sum_as_doubles(__m512d sum, __m512 x) {
    sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
    return _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}

// How many keys a mask holds.
struct Count {
    double sum = 0;
    void add(__m512i, __mmask16 mask) { sum += __builtin_popcount(mask); }
    double total() const { return sum; }
};

// The sum of the positive floats whose keys a mask holds: there a key is the float's bits.
struct Mass {
    __m512d sum = _mm512_setzero_pd();
    void add(__m512i keys, __mmask16 mask) {
        sum = sum_as_doubles(sum, _mm512_maskz_mov_ps(mask, _mm512_castsi512_ps(keys)));
    }
    double total() const { return _mm512_reduce_add_pd(sum); }
};

// The largest key in [low, high) such that those of [key, high) measure `wanted` or more together;
// `low` if none does. Overwrites `keys`, all of which are in the range.
template <class Measure>
int32_t find_threshold(int32_t* keys, int64_t count, int32_t low, int64_t high, double wanted) {
    double above = 0;  // of those dropped at the upper end
    int64_t least = low;
    while (high - least > 1 && count > 0) {
        const int64_t middle = least + (high - least) / 2;
        const __m512i pivot = _mm512_set1_epi32(int32_t(middle));
        Measure measure;
        for (int64_t i = 0; i < count; i += LANES) {
            const __mmask16 valid = lanes(int(std::min<int64_t>(count - i, LANES)));
            const __m512i x = _mm512_maskz_loadu_epi32(valid, keys + i);
            measure.add(x, _mm512_mask_cmpge_epi32_mask(valid, x, pivot));
        }
        const bool is_upper = above + measure.total() >= wanted;
        int64_t num_kept = 0;
        for (int64_t i = 0; i < count; i += LANES) {
            const __mmask16 valid = lanes(int(std::min<int64_t>(count - i, LANES)));
            const __m512i x = _mm512_maskz_loadu_epi32(valid, keys + i);
            const __mmask16 up = _mm512_mask_cmpge_epi32_mask(valid, x, pivot);
            const __mmask16 kept = is_upper ? up : __mmask16(valid & ~up);
            // A full store of a compressed register: far faster than a compressing store.
            _mm512_storeu_si512(keys + num_kept, _mm512_maskz_compress_epi32(kept, x));
            num_kept += __builtin_popcount(kept);
        }
        count = num_kept;
        if (is_upper) {
            least = middle;
        } else {
            above += measure.total();
            high = middle;
        }
    }
    return int32_t(least);
}

// Keys of those of `values` at or above `bound`; returns their number.
int64_t collect_keys(const float* values, int64_t count, float bound, int32_t* keys) {
    int64_t num_kept = 0;
    for (int64_t i = 0; i < count; i += LANES) {
        const __mmask16 valid = lanes(int(std::min<int64_t>(count - i, LANES)));
        const __m512 x = _mm512_maskz_loadu_ps(valid, values + i);
        const __mmask16 kept = _mm512_mask_cmp_ps_mask(valid, x, _mm512_set1_ps(bound), _CMP_GE_OQ);
        _mm512_storeu_si512(keys + num_kept, _mm512_maskz_compress_epi32(kept, keys_of(x)));
        num_kept += __builtin_popcount(kept);
    }
    return num_kept;
}

// The k-th largest logit, 0 < k < vocab_size. The k-th largest maximum of a block is a lower bound.
float kth_largest(const float* row, int64_t vocab_size, int64_t k, const float* block_largest,
                  int32_t* keys) {
    const int64_t high = int64_t(key_of(INFINITY));
    float bound = -INFINITY;
    const int64_t num_blocks = blocks_of(vocab_size);
    if (k <= num_blocks) {
        const int64_t count = collect_keys(block_largest, num_blocks, -INFINITY, keys);
        bound = value_of(find_threshold<Count>(keys, count, key_of(-INFINITY), high, double(k)));
    }
    const int64_t count = collect_keys(row, vocab_size, bound, keys);
    return value_of(find_threshold<Count>(keys, count, key_of(bound), high, double(k)));
}

// e^((logit - largest) / temperature), 0 below `lowest`; returns their sum.
double fill_weights(const float* row, int64_t vocab_size, float largest, float lowest,
                    float temperature, float* weights) {
    const __m512 most = _mm512_set1_ps(largest), divisor = _mm512_set1_ps(temperature);
    __m512d sum = _mm512_setzero_pd();
    for (int64_t i = 0; i < blocks_of(vocab_size) * BLOCK; i += LANES) {
        __m512 weight = _mm512_setzero_ps();
        if (i < vocab_size) {
            const __m512 x = load_logits(row, i, vocab_size);
            const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(lowest), _CMP_GE_OQ);
            weight =
                _mm512_maskz_mov_ps(kept, exp512(_mm512_div_ps(_mm512_sub_ps(x, most), divisor)));
        }
        _mm512_storeu_ps(weights + i, weight);
        sum = sum_as_doubles(sum, weight);
    }
    return _mm512_reduce_add_pd(sum);
}

// The smallest weight of the nucleus: the fewest largest whose sum reaches `top_p` of `total`.
// Those below `bound` are less than the rest together, so that none of them belongs to it.
float nucleus_threshold(const float* weights, int64_t count, double top_p, double total,
                        int32_t* keys) {
    const float bound = std::min(1.0f, float((1.0 - top_p) * total / double(count)));
    const int64_t num_candidates = collect_keys(weights, count, bound, keys);
    const int64_t high = int64_t(key_of(1.0f)) + 1;
    return value_of(find_threshold<Mass>(keys, num_candidates, key_of(bound), high, top_p * total));
}

// The first token where the sum of the weights from `threshold` on, in the order of ids, passes the
// share `uniform` of all of it.
int64_t invert(const float* weights, int64_t num_blocks, float threshold, double uniform,
               double* block_sums) {
    const __m512 least = _mm512_set1_ps(threshold);
    double total = 0;
    int64_t last_block = 0;
    for (int64_t block = 0; block < num_blocks; ++block) {
        __m512d sum = _mm512_setzero_pd();
        for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i += LANES) {
            const __m512 x = _mm512_loadu_ps(weights + i);
            sum = sum_as_doubles(sum,
                                 _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_GE_OQ), x));
        }
        block_sums[block] = _mm512_reduce_add_pd(sum);
        total += block_sums[block];
        if (block_sums[block] > 0) last_block = block;
    }
    // Rounding must not lift the target to the total, beyond the last token.
    const double target = std::min(uniform * total, std::nextafter(total, 0.0));
    double passed = 0;
    int64_t block = 0;
    while (block < last_block && passed + block_sums[block] <= target)
        passed += block_sums[block++];
    int64_t last = block * BLOCK;
    for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; ++i) {
        if (weights[i] < threshold || weights[i] == 0) continue;
        last = i;
        passed += weights[i];
        if (passed > target) break;
    }
    return last;
}

int64_t draw(const float* row, int64_t vocab_size, const Params& params, const Scratch& scratch) {
    const int64_t num_blocks = blocks_of(vocab_size);
    float* block_largest = scratch.weights;  // not needed any more when the weights are written
    const float largest = largest_of_row(row, vocab_size, block_largest);
    if (!std::isfinite(largest)) return -1;
    float lowest = -INFINITY;
    if (params.top_k < vocab_size)
        lowest = kth_largest(row, vocab_size, params.top_k, block_largest, scratch.keys);
    const double total =
        fill_weights(row, vocab_size, largest, lowest, params.temperature, scratch.weights);
    float threshold = params.min_p;  // the largest weight is 1
    if (params.top_p < 1) {
        threshold = std::max(threshold, nucleus_threshold(scratch.weights, vocab_size, params.top_p,
                                                          total, scratch.keys));
    }
    return invert(scratch.weights, num_blocks, threshold, params.uniform, scratch.block_sums);
}

// Ids of [0, vocab_size) at or above `bound`, at most `max_found` of them; returns how many there
// are.
int32_t collect_ids(const float* row, int64_t vocab_size, float bound, const float* block_largest,
                    int32_t max_found, int64_t* ids) {
    int32_t num_found = 0;
    for (int64_t block = 0; block < blocks_of(vocab_size); ++block) {
        if (!(block_largest[block] >= bound)) continue;
        const int64_t end = std::min((block + 1) * BLOCK, vocab_size);
        for (int64_t i = block * BLOCK; i < end; i += LANES) {
            uint32_t near =
                _mm512_cmp_ps_mask(load_logits(row, i, end), _mm512_set1_ps(bound), _CMP_GE_OQ);
            for (; near != 0; near &= near - 1) {
                if (num_found < max_found) ids[num_found] = i + __builtin_ctz(near);
                ++num_found;
            }
        }
    }
    return num_found;
}

int32_t find_near(const float* row, int64_t vocab_size, float margin, int32_t max_found,
                  float* block_largest, int64_t* ids) {
    const float largest = largest_of_row(row, vocab_size, block_largest);
    int32_t num_found = 0;
    if (!std::isfinite(margin)) margin = 0;  // tells nothing: the logits decide as they are
    if (std::isfinite(largest)) {
        for (float bound = largest - margin;; margin /= 2, bound = largest - margin) {
            num_found = collect_ids(row, vocab_size, bound, block_largest, max_found, ids);
            if (num_found <= max_found || bound == largest) break;
        }
    }
    num_found = std::min(num_found, max_found);
    for (int32_t i = num_found; i < max_found; ++i)
        ids[i] = num_found == 0 ? 0 : ids[num_found - 1];
    return num_found;
}

// Bytes of one thread: weights and keys, each with a register's room at the end, and sums.
int64_t thread_bytes(int64_t vocab_size) {
    const int64_t num_blocks = blocks_of(vocab_size);
    return 2 * (num_blocks * BLOCK + LANES) * 4 + (num_blocks + 8) / 8 * 64;
}

Scratch scratch_of_thread(void* scratch, int64_t vocab_size) {
    char* begin = static_cast<char*>(scratch) + omp_get_thread_num() * thread_bytes(vocab_size);
    const int64_t num_values = blocks_of(vocab_size) * BLOCK + LANES;
    auto* weights = reinterpret_cast<float*>(begin);
    auto* keys = reinterpret_cast<int32_t*>(weights + num_values);
    return {weights, keys, reinterpret_cast<double*>(keys + num_values)};
}

}  // namespace

int64_t sampling_scratch_bytes(int64_t vocab_size) {
    return omp_get_max_threads() * thread_bytes(vocab_size);
}

void find_near_largest(const float* logits, int64_t vocab_size, const int64_t* rows,
                       const float* margins, int32_t num_samples, int32_t max_found, void* scratch,
                       int64_t* ids, int32_t* num_found) {
#pragma omp parallel for schedule(dynamic, 1) if (num_samples * vocab_size > MAX_SEARCHED_ALONE)
    for (int32_t i = 0; i < num_samples; ++i) {
        num_found[i] =
            find_near(logits + rows[i] * vocab_size, vocab_size, margins[i], max_found,
                      scratch_of_thread(scratch, vocab_size).weights, ids + int64_t(i) * max_found);
    }
}

void draw_tokens(const float* logits, int64_t vocab_size, const int64_t* rows, const double* params,
                 int32_t num_samples, void* scratch, int64_t* tokens) {
    const int64_t n = num_samples;
#pragma omp parallel for schedule(dynamic, 1) if (num_samples > MAX_DRAWN_ALONE)
    for (int32_t i = 0; i < num_samples; ++i) {
        const Params own = {float(params[i]), int64_t(params[n + i]), params[2 * n + i],
                            float(params[3 * n + i]), params[4 * n + i]};
        tokens[i] = draw(logits + rows[i] * vocab_size, vocab_size, own,
                         scratch_of_thread(scratch, vocab_size));
    }
}
