// Causal attention of a tile of queries over the paged pool, read in place.
//
// Keys and values of 64 tokens at a time are laid out as panels (matmul.h) in the thread's scratch,
// then all queries of the tile that share the KV head multiply with them: scores, a softmax that
// goes along (arXiv:1805.02867), and the sum of values.
#pragma once
#include "api.h"
#include "kv_panels.h"
#include "matmul.h"
#include "online_softmax.h"

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
    int64_t maximum_bytes() const { return round_up(int64_t(rows) * 4); }
    int64_t total_bytes() const { return int64_t(rows) * 64; }
    int64_t bytes() const {
        return query_bytes() + key_bytes() + value_bytes() + score_bytes() + weight_bytes() +
               sum_bytes() + maximum_bytes() + total_bytes();
    }

    void place(char* memory) {
        queries = take<bf16>(memory, query_bytes());
        keys = take<bf16>(memory, key_bytes());
        values = take<bf16>(memory, value_bytes());
        scores = take<float>(memory, score_bytes());
        weights = take<bf16>(memory, weight_bytes());
        sums = take<float>(memory, sum_bytes());
        maxima = take<float>(memory, maximum_bytes());
        totals = take<float>(memory, total_bytes());
    }

    int rows, dim;
    bf16 *queries, *keys, *values, *weights;
    float *scores, *sums;    // [panel][rows][PANEL]
    float *maxima, *totals;  // [rows], [rows][16]

  private:
    template <class T>
    static T* take(char*& memory, int64_t bytes) {
        T* place = reinterpret_cast<T*>(memory);
        memory += bytes;
        return place;
    }
};

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
            _mm512_storeu_ps(scratch_.totals + int64_t(row) * 16, _mm512_setzero_ps());
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
            // Rows hold all heads: whoever begins with the first one prefetches them.
            const bool is_prefetching = now.first_head == 0 || (is_last && next.first_head == 0);
            num_prefetched_bytes_ = is_prefetching ? 0 : num_coming * row_size_ * 2;
            for (int head = 0; head < now.num_heads; ++head) {
                for (int i = 0; i < count; ++i) own[i] = places[i] + head * dim_;
                attend_keys(head, key, key == begin, own, key == begin ? skipped : 0, count);
            }
            prefetch_rest();
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
                           next_prefetch(dim_ / 2));
        for (int row = 0; row < num_rows_; ++row) {
            const int64_t position = first_ + row / num_shared_;
            const int64_t seen = group_.window ? position + 1 - group_.window - key : 0;
            const float* scores = scratch_.scores + row * PANEL;
            const float factor = softmax_row(
                scores, scores + int64_t(num_rows_) * PANEL, int(std::max<int64_t>(0, seen)),
                int(std::min<int64_t>(count, position + 1 - key)), scale_,
                scratch_.maxima[offset + row], scratch_.totals + (offset + row) * 16,
                scratch_.weights + row * KEYS);
            if (factor != 1.0f && !is_first) scale_row(sums + row * PANEL, factor);
        }
        for (int i = 0; i < count; ++i) places[i] += value_offset_;
        pack_values(places, skipped, count, dim_, scratch_.values);
        for (int panel = 0; panel < num_panels_; ++panel)
            multiply_panel(scratch_.weights, KEYS, num_rows_,
                           scratch_.values + int64_t(panel) * num_pairs * 2 * PANEL, num_pairs,
                           sums + int64_t(panel) * num_rows_ * PANEL, is_first,
                           next_prefetch(num_pairs));
    }

    // What a product of `num_pairs` steps prefetches: as much of the coming rows as it reads
    // itself.
    const bf16* next_prefetch(int num_pairs) {
        const int64_t row_bytes = row_size_ * 2, token = num_prefetched_bytes_ / row_bytes;
        if (token >= num_coming_) return nullptr;
        const bf16* data = coming_[token] + num_prefetched_bytes_ % row_bytes / 2;
        num_prefetched_bytes_ += int64_t(num_pairs) * PANEL * 4;
        return data;
    }

    // Few keys, as at the end of a context, read less than what comes next.
    void prefetch_rest() const {
        const int64_t row_bytes = row_size_ * 2, end = num_coming_ * row_bytes;
        for (int64_t byte = num_prefetched_bytes_; byte < end; byte += 64) {
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
        const __m512 totals = _mm512_loadu_ps(scratch_.totals + int64_t(row) * 16);
        const __m512 factor = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(totals));
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
    int64_t num_prefetched_bytes_ = 0;  // of them
    int num_rows_ = 0;                  // of one KV head
    int64_t first_ = 0;                 // position of the first query
};
