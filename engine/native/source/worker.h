// One thread's way through the layers of a step.
#pragma once
#include "activations.h"
#include "api.h"
#include "attention.h"
#include "linear.h"
#include "team.h"
#include "workspace.h"

class Worker {
  public:
    Worker(const Model& model, const Step& step, const Workspace& workspace, Member& member,
           PhaseTimes* times)
        : model_(model),
          step_(step),
          space_(workspace),
          member_(member),
          times_(*times),
          watch_(member.thread == 0),
          sums_(workspace.sums(member.thread)),
          unpacked_(workspace.unpacked(member.thread)),
          head_(workspace.head(member.thread)),
          scratch_(workspace.attention_of(member.thread)) {}

    // Pool rows and tiles, which all layers share.
    void prepare() {
        const int num_groups = num_groups_of(model_);
        const int tile_tokens = std::max(1, TILE_ROWS / (model_.num_heads / model_.num_kv_heads));
        num_tiles_ = 0;
        for (int sequence = 0; sequence < step_.num_seqs; ++sequence)
            num_tiles_ += (step_.num_new[sequence] + tile_tokens - 1) / tile_tokens;
        member_.share(1, 1, [&](int64_t) {
            Tile* tile = space_.tiles;
            int64_t token = step_.num_tokens;
            // Long ones go first: prompts stand last in a step, and their last queries see most.
            for (int sequence = step_.num_seqs - 1; sequence >= 0; --sequence) {
                const int count = int(step_.num_new[sequence]);
                token -= count;
                for (int group = 0; group < num_groups; ++group)
                    find_rows(step_.groups[group], sequence, count,
                              space_.rows + int64_t(group) * step_.num_tokens + token);
                for (int end = count; end > 0; end -= tile_tokens) {
                    const int first = std::max(0, end - tile_tokens);
                    *tile++ = {sequence, first, end - first, token};
                }
            }
        });
    }

    void attend(const Layer& layer, int index, float* partial) {
        norm(layer.input_norm);
        multiply_rows_of(member_, layer.qkv, space_.normed, step_.num_tokens, 1, sums_, unpacked_,
                         [&](int64_t row, int count, int64_t panel, const float* sums) {
                             store_rows(layer.qkv, row, count, panel, sums, space_.heads);
                         });
        watch_.add_to(times_.qkv);
        rotate(layer, index);
        const int64_t stride =
            int64_t(model_.num_heads + 2 * model_.num_kv_heads) * model_.head_dim;
        const int64_t output_stride = int64_t(model_.num_heads) * model_.head_dim;
        const bf16* pool = static_cast<const bf16*>(step_.kv_layers[index]);
        // Single queries take all heads at once: then their context is read from end to end.
        const bool is_decode = num_tiles_ == step_.num_tokens;
        const int64_t num_heads =
            is_decode && num_tiles_ >= 2 * member_.team.size ? model_.num_kv_heads : 1;
        const int64_t num_parts = model_.num_kv_heads / num_heads;
        const int64_t num_units = num_tiles_ * num_parts;
        const int64_t grain =
            is_decode ? std::max<int64_t>(1, num_units / (4 * member_.team.size)) : 1;
        const auto unit_at = [&](int64_t unit) {
            return Attended{space_.tiles[unit / num_parts], int32_t(unit % num_parts * num_heads),
                            int32_t(num_heads)};
        };
        TileAttention attention(model_, step_, step_.groups[layer.kv_group], pool, scratch_);
        member_.share(num_units, grain, [&](int64_t unit) {
            const Attended now = unit_at(unit);
            attention.attend(now, unit_at(std::min(unit + 1, num_units - 1)),
                             space_.heads + now.tile.token * stride, stride,
                             space_.attended + now.tile.token * output_stride, output_stride);
        });
        watch_.add_to(times_.attention);
        project(layer.output, space_.attended, layer.output_norm, partial);
        watch_.add_to(times_.output);
    }

    void feed_forward(const Layer& layer, float* partial) {
        norm(layer.mlp_norm);
        const int64_t size = model_.intermediate_size;
        multiply_rows_of(member_, layer.gate_up, space_.normed, step_.num_tokens, 2, sums_,
                         unpacked_, [&](int64_t row, int count, int64_t panel, const float* sums) {
                             const int64_t first = panel / 2 * PANEL;
                             const float* up = sums + CHUNK_ROWS * PANEL;
                             for (int r = 0; r < count; ++r)
                                 for (int i = 0; i < PANEL && first + i < size; i += 16) {
                                     const __m512 gate = _mm512_loadu_ps(sums + r * PANEL + i);
                                     const __m512 active =
                                         model_.activation == SILU ? silu(gate) : gelu_tanh(gate);
                                     const __m512 value =
                                         _mm512_mul_ps(active, _mm512_loadu_ps(up + r * PANEL + i));
                                     _mm256_mask_storeu_epi16(
                                         space_.inner + (row + r) * size + first + i,
                                         lanes(int(std::min<int64_t>(16, size - first - i))),
                                         round_to_bf16(value));
                                 }
                         });
        watch_.add_to(times_.mlp);
        project(layer.down, space_.inner, layer.mlp_output_norm, partial);
        watch_.add_to(times_.down);
    }

    // What all ranks' parts of a half layer sum up to.
    void add(const float* summed, const float* weight) {
        const int64_t size = model_.hidden_size;
        member_.share(step_.num_tokens, ROW_GRAIN, [&](int64_t row) {
            float* x = step_.x + row * size;
            const float* y = summed + row * size;
            if (weight != nullptr) {
                add_normed(y, weight, size, model_.norm_eps, x);
                return;
            }
            for (int64_t i = 0; i < size; ++i) x[i] += y[i];
        });
        watch_.add_to(times_.norm);
    }

  private:
    void norm(const float* weight) {
        const int64_t size = model_.hidden_size;
        member_.share(step_.num_tokens, ROW_GRAIN, [&](int64_t row) {
            norm_to_bf16(step_.x + row * size, weight, size, model_.norm_eps,
                         space_.normed + row * size);
        });
        watch_.add_to(times_.norm);
    }

    // Turns queries and keys; keys and values go to the pool.
    void rotate(const Layer& layer, int index) {
        const int dim = model_.head_dim, num_heads = model_.num_heads;
        const int num_kv_heads = model_.num_kv_heads;
        const int64_t stride = int64_t(num_heads + 2 * num_kv_heads) * dim;
        const int64_t* rows = space_.rows + int64_t(layer.kv_group) * step_.num_tokens;
        bf16* pool = static_cast<bf16*>(step_.kv_layers[index]);
        member_.share(step_.num_tokens, ROW_GRAIN, [&](int64_t token) {
            const int64_t angles = (int64_t(layer.rotary) * step_.num_tokens + token) * (dim / 2);
            const float *cos = step_.cos + angles, *sin = step_.sin + angles;
            bf16* heads = space_.heads + token * stride;
            for (int head = 0; head < num_heads; ++head)
                norm_and_rotate(heads + head * dim, layer.query_norm, model_.norm_eps, cos, sin,
                                dim, head_, heads + head * dim);
            const bf16* keys = heads + num_heads * dim;
            bf16* row = pool + rows[token] * 2 * num_kv_heads * dim;
            for (int head = 0; head < num_kv_heads; ++head)
                norm_and_rotate(keys + head * dim, layer.key_norm, model_.norm_eps, cos, sin, dim,
                                head_, row + head * dim);
            const bf16* values = keys + num_kv_heads * dim;
            std::copy(values, values + num_kv_heads * dim, row + num_kv_heads * dim);
        });
        watch_.add_to(times_.rotate);
    }

    // To `partial` if it is given, else to the residual stream, through a norm if there is one.
    void project(const Linear& linear, const bf16* input, const float* norm_weight,
                 float* partial) {
        const int64_t size = model_.hidden_size;
        float* summed = partial != nullptr       ? partial
                        : norm_weight != nullptr ? space_.summed
                                                 : nullptr;
        multiply_rows_of(member_, linear, input, step_.num_tokens, 1, sums_, unpacked_,
                         [&](int64_t row, int count, int64_t panel, const float* sums) {
                             const int64_t first = panel * PANEL;
                             for (int r = 0; r < count; ++r)
                                 for (int i = 0; i < PANEL && first + i < size; i += 16)
                                     add_sums(sums + r * PANEL + i, (row + r) * size + first + i,
                                              int(std::min<int64_t>(16, size - first - i)), summed);
                         });
        if (partial == nullptr && norm_weight != nullptr) add(space_.summed, norm_weight);
    }

    void add_sums(const float* sums, int64_t place, int count, float* summed) {
        const __mmask16 mask = lanes(count);
        const __m512 value = _mm512_loadu_ps(sums);
        if (summed != nullptr)
            _mm512_mask_storeu_ps(summed + place, mask, value);
        else
            _mm512_mask_storeu_ps(
                step_.x + place, mask,
                _mm512_add_ps(_mm512_maskz_loadu_ps(mask, step_.x + place), value));
    }

    static void store_rows(const Linear& linear, int64_t row, int count, int64_t panel,
                           const float* sums, bf16* out) {
        const int64_t first = panel * PANEL, size = linear.out_features;
        for (int r = 0; r < count; ++r)
            for (int i = 0; i < PANEL && first + i < size; i += 16)
                _mm256_mask_storeu_epi16(out + (row + r) * size + first + i,
                                         lanes(int(std::min<int64_t>(16, size - first - i))),
                                         round_to_bf16(_mm512_loadu_ps(sums + r * PANEL + i)));
    }

    void find_rows(const Group& group, int sequence, int count, int64_t* rows) const {
        const int64_t* table = group.block_tables + sequence * group.table_stride;
        for (int i = 0; i < count; ++i) {
            const int64_t position = step_.starts[sequence] + i;
            rows[i] =
                table[position / step_.block_size] * step_.block_size + position % step_.block_size;
        }
    }

    const Model& model_;
    const Step& step_;
    const Workspace& space_;
    Member& member_;
    PhaseTimes& times_;
    Stopwatch watch_;
    float* sums_;
    bf16* unpacked_;
    float* head_;
    AttentionScratch scratch_;
    int64_t num_tiles_ = 0;
};
