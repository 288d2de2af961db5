// Causal attention of a tile of queries over the paged pool, read in place.
//
// Keys and values of 64 tokens at a time are laid out as panels (matmul.h) in the thread's scratch,
// then all queries of the tile that share the KV head multiply with them: scores, a softmax that
// goes along (arXiv:1805.02867), and the sum of values.
#pragma once
#include <cmath>

#include "api.h"
#include "matmul.h"

constexpr int KEYS = 64;       // tokens of one block of scores
constexpr int TILE_ROWS = 96;  // queries x heads of one tile, at most (one query if it has more)

// Queries [first, first + count) of one sequence, whose new tokens begin with `token`.
struct Tile {
    int32_t sequence, first, count;
    int64_t token;
};

struct AttentionScratch {
    AttentionScratch(int max_rows, int head_dim) : rows(max_rows), dim(head_dim) {}

    int64_t panels() const { return (dim + PANEL - 1) / PANEL; }
    int64_t query_bytes() const { return round_up(int64_t(rows) * dim * 2); }
    int64_t key_bytes() const { return round_up(int64_t(KEYS) * dim * 2); }
    int64_t value_bytes() const { return round_up(int64_t(KEYS) * panels() * PANEL * 2); }
    int64_t score_bytes() const { return round_up(int64_t(rows) * KEYS * 4); }
    int64_t weight_bytes() const { return round_up(int64_t(rows) * KEYS * 2); }
    int64_t sum_bytes() const { return round_up(int64_t(rows) * panels() * PANEL * 4); }
    int64_t bytes() const {
        return query_bytes() + key_bytes() + value_bytes() + score_bytes() + weight_bytes() +
               sum_bytes() + 2 * round_up(int64_t(rows) * 4);
    }

    void place(char* memory) {
        queries = take<bf16>(memory, query_bytes());
        keys = take<bf16>(memory, key_bytes());
        values = take<bf16>(memory, value_bytes());
        scores = take<float>(memory, score_bytes());
        weights = take<bf16>(memory, weight_bytes());
        sums = take<float>(memory, sum_bytes());
        maxima = take<float>(memory, round_up(int64_t(rows) * 4));
        totals = take<float>(memory, round_up(int64_t(rows) * 4));
    }

    static int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

    int rows, dim;
    bf16 *queries, *keys, *values, *weights;
    float *scores, *sums, *maxima, *totals;  // scores and sums: [panel][rows][PANEL]

  private:
    template <class T>
    static T* take(char*& memory, int64_t bytes) {
        T* place = reinterpret_cast<T*>(memory);
        memory += bytes;
        return place;
    }
};

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
inline float soften(const float* left, const float* right, int begin, int end, float scale,
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

// Where keys of positions [begin, begin + count) lie in the pool of one KV head.
inline void find_keys(const Step& step, const Group& group, int64_t sequence, const bf16* pool,
                      int64_t row_size, int64_t begin, int count, const bf16** keys) {
    const int64_t* table = group.block_tables + sequence * group.table_stride;
    int64_t block = begin / step.block_size, offset = begin % step.block_size;
    for (int i = 0; i < count; ++i) {
        keys[i] = pool + (table[block] * step.block_size + offset) * row_size;
        if (++offset == step.block_size) offset = 0, ++block;
    }
}

// The first key that any query of a tile sees.
inline int64_t first_visible(const Step& step, const Group& group, const Tile& tile) {
    const int64_t first = step.starts[tile.sequence] + tile.first;
    return group.window ? std::max<int64_t>(0, first + 1 - group.window) : 0;
}

// Blocks of keys begin at the same positions for all tiles: sums then go in the same order.
inline int64_t first_key(const Step& step, const Group& group, const Tile& tile) {
    return first_visible(step, group, tile) / KEYS * KEYS;
}

// What a thread attends to in one go: a tile with the KV heads [first_head, first_head +
// num_heads).
struct Attended {
    Tile tile;
    int32_t first_head, num_heads;
};

// `queries` and `attended` begin at the first new token of the sequence and have `query_stride` and
// `output_stride` elements per token. `next` is what this thread probably does next.
class TileAttention {
  public:
    TileAttention(const Model& model, const Step& step, const Group& group, const bf16* pool,
                  AttentionScratch& scratch)
        : model_(model),
          step_(step),
          group_(group),
          pool_(pool),
          scratch_(scratch),
          dim_(model.head_dim),
          num_shared_(model.num_heads / model.num_kv_heads),
          num_panels_(int(scratch.panels())),
          scale_(model.attention_scale * 1.44269504f),
          row_size_(int64_t(2) * model.num_kv_heads * model.head_dim),
          value_offset_(int64_t(model.num_kv_heads) * model.head_dim) {}

    void attend(const Attended& now, const Attended& next, const bf16* queries,
                int64_t query_stride, bf16* attended, int64_t output_stride) {
        const Tile& tile = now.tile;
        num_rows_ = tile.count * num_shared_;
        first_ = step_.starts[tile.sequence] + tile.first;
        for (int row = 0; row < num_rows_ * now.num_heads; ++row) {
            const bf16* query = queries +
                                (tile.first + row % num_rows_ / num_shared_) * query_stride +
                                head_of(now, row) * dim_;
            std::copy(query, query + dim_, scratch_.queries + int64_t(row) * dim_);
            scratch_.maxima[row] = -INFINITY;
            scratch_.totals[row] = 0.0f;
        }
        const int64_t begin = first_key(step_, group_, tile), end = first_ + tile.count;
        const int skipped = int(first_visible(step_, group_, tile) - begin);
        const bf16 *places[KEYS], *coming[KEYS], *own[KEYS];
        int count = int(std::min<int64_t>(KEYS, end - begin));
        find(tile.sequence, now.first_head, begin, count, places);
        for (int64_t key = begin; key < end; key += KEYS) {
            const bool is_last = key + KEYS >= end;
            const Attended& then = is_last ? next : now;
            const int64_t then_key = is_last ? first_key(step_, group_, next.tile) : key + KEYS;
            const int64_t then_end =
                step_.starts[then.tile.sequence] + then.tile.first + then.tile.count;
            const int num_coming = int(std::min<int64_t>(KEYS, then_end - then_key));
            find(then.tile.sequence, then.first_head, then_key, num_coming, coming);
            coming_ = coming;
            num_coming_ = num_coming;
            // Rows hold all heads: whoever begins with the first one asks for them.
            const bool is_asking = now.first_head == 0 || (is_last && next.first_head == 0);
            num_asked_bytes_ = is_asking ? 0 : num_coming * row_size_ * 2;
            for (int head = 0; head < now.num_heads; ++head) {
                for (int i = 0; i < count; ++i) own[i] = places[i] + head * dim_;
                attend_keys(head, key, key == begin, own, key == begin ? skipped : 0, count);
            }
            ask_rest();
            std::copy(coming, coming + num_coming, places);
            count = num_coming;
        }
        for (int row = 0; row < num_rows_ * now.num_heads; ++row)
            finish_row(row, attended +
                                (tile.first + row % num_rows_ / num_shared_) * output_stride +
                                head_of(now, row) * dim_);
    }

  private:
    int64_t head_of(const Attended& now, int row) const {
        return int64_t(now.first_head + row / num_rows_) * num_shared_ + row % num_shared_;
    }

    void find(int64_t sequence, int head, int64_t begin, int count, const bf16** keys) const {
        find_keys(step_, group_, sequence, pool_ + int64_t(head) * dim_, row_size_, begin, count,
                  keys);
    }

    // All queries of one KV head with the keys [key, key + count).
    void attend_keys(int head, int64_t key, bool is_first, const bf16** places, int skipped,
                     int count) {
        const int num_pairs = (count + 1) / 2;
        const int64_t offset = int64_t(head) * num_rows_;
        float* sums = scratch_.sums + offset * num_panels_ * PANEL;
        pack_keys(places, skipped, count, dim_, scratch_.keys);
        for (int panel = 0; panel * PANEL < count; ++panel)
            multiply_panel(scratch_.queries + offset * dim_, dim_, num_rows_,
                           scratch_.keys + int64_t(panel) * dim_ * PANEL, dim_ / 2,
                           scratch_.scores + int64_t(panel) * num_rows_ * PANEL, true,
                           ask_ahead(dim_ / 2));
        for (int row = 0; row < num_rows_; ++row) {
            const int64_t position = first_ + row / num_shared_;
            const int64_t seen = group_.window ? position + 1 - group_.window - key : 0;
            const float* scores = scratch_.scores + row * PANEL;
            const float factor =
                soften(scores, scores + int64_t(num_rows_) * PANEL, int(std::max<int64_t>(0, seen)),
                       int(std::min<int64_t>(count, position + 1 - key)), scale_,
                       scratch_.maxima[offset + row], scratch_.totals[offset + row],
                       scratch_.weights + row * KEYS);
            if (factor != 1.0f && !is_first) scale_row(sums + row * PANEL, factor);
        }
        for (int i = 0; i < count; ++i) places[i] += value_offset_;
        pack_values(places, skipped, count, dim_, scratch_.values);
        for (int panel = 0; panel < num_panels_; ++panel)
            multiply_panel(scratch_.weights, KEYS, num_rows_,
                           scratch_.values + int64_t(panel) * num_pairs * 2 * PANEL, num_pairs,
                           sums + int64_t(panel) * num_rows_ * PANEL, is_first,
                           ask_ahead(num_pairs));
    }

    // What a product of `num_pairs` steps asks for: as much of the coming rows as it reads itself.
    const bf16* ask_ahead(int num_pairs) {
        const int64_t row_bytes = row_size_ * 2, token = num_asked_bytes_ / row_bytes;
        if (token >= num_coming_) return nullptr;
        const bf16* data = coming_[token] + num_asked_bytes_ % row_bytes / 2;
        num_asked_bytes_ += int64_t(num_pairs) * PANEL * 4;
        return data;
    }

    // Few keys, as at the end of a context, read less than what comes next.
    void ask_rest() const {
        const int64_t row_bytes = row_size_ * 2, end = num_coming_ * row_bytes;
        for (int64_t byte = num_asked_bytes_; byte < end; byte += 64) {
            const char* row = reinterpret_cast<const char*>(coming_[byte / row_bytes]);
            _mm_prefetch(row + byte % row_bytes, _MM_HINT_T0);
        }
    }

    void scale_row(float* sums, float factor) const {
        for (int panel = 0; panel < num_panels_; ++panel)
            for (int i = 0; i < PANEL; i += 16) {
                float* place = sums + int64_t(panel) * num_rows_ * PANEL + i;
                _mm512_storeu_ps(place,
                                 _mm512_mul_ps(_mm512_loadu_ps(place), _mm512_set1_ps(factor)));
            }
    }

    void finish_row(int row, bf16* output) const {
        const __m512 factor = _mm512_set1_ps(1.0f / scratch_.totals[row]);
        const float* sums = scratch_.sums +
                            int64_t(row / num_rows_) * num_rows_ * num_panels_ * PANEL +
                            row % num_rows_ * PANEL;
        for (int column = 0; column < dim_; column += 16) {
            const float* sum = sums + int64_t(column / PANEL) * num_rows_ * PANEL + column % PANEL;
            _mm256_mask_storeu_epi16(output + column, lanes(dim_ - column),
                                     round_to_bf16(_mm512_mul_ps(_mm512_loadu_ps(sum), factor)));
        }
    }

    const Model& model_;
    const Step& step_;
    const Group& group_;
    const bf16* pool_;
    AttentionScratch& scratch_;
    const int dim_, num_shared_, num_panels_;
    const float scale_;
    const int64_t row_size_, value_offset_;
    const bf16* const* coming_ = nullptr;  // rows of the next keys
    int num_coming_ = 0;
    int64_t num_asked_bytes_ = 0;  // of them
    int num_rows_ = 0;             // of one KV head
    int64_t first_ = 0;            // position of the first query
};
