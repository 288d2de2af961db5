// Cuts `Step::scratch` into what all threads share and what each has of its own.
#pragma once
#include "api.h"
#include "attention.h"
#include "linear.h"

inline int num_groups_of(const Model& model) {
    int last = 0;
    for (int i = 0; i < model.num_layers; ++i) last = std::max(last, model.layers[i].kv_group);
    return last + 1;
}

class Workspace {
  public:
    Workspace(const Model& model, int num_tokens, int num_threads, char* memory)
        : attention(std::max(TILE_ROWS, model.num_heads), model.head_dim), at_(memory) {
        const int64_t tokens = num_tokens, dim = model.head_dim;
        const int num_groups = num_groups_of(model);
        normed = take<bf16>(tokens * model.hidden_size * 2);
        heads = take<bf16>(tokens * (model.num_heads + 2 * model.num_kv_heads) * dim * 2);
        attended = take<bf16>(tokens * model.num_heads * dim * 2);
        inner = take<bf16>(tokens * model.intermediate_size * 2);
        summed = take<float>(tokens * model.hidden_size * 4);
        rows = take<int64_t>(tokens * num_groups * 8);
        tiles = take<Tile>(tokens * sizeof(Tile));
        const int64_t widest = std::max(
            {model.hidden_size, model.intermediate_size, model.num_heads * model.head_dim});
        unpacked_bytes_ = round_up(widest * PANEL * 2);
        private_bytes_ = SUMS_BYTES + unpacked_bytes_ + round_up(dim * 4) + attention.bytes();
        private_ = take<char>(private_bytes_ * num_threads);
    }

    float* sums(int thread) const { return reinterpret_cast<float*>(own(thread)); }
    bf16* unpacked(int thread) const { return reinterpret_cast<bf16*>(own(thread) + SUMS_BYTES); }
    float* head(int thread) const {
        return reinterpret_cast<float*>(own(thread) + SUMS_BYTES + unpacked_bytes_);
    }
    AttentionScratch attention_of(int thread) const {
        AttentionScratch scratch = attention;
        scratch.place(own(thread) + private_bytes_ - attention.bytes());
        return scratch;
    }
    int64_t bytes() const { return at_ - static_cast<char*>(nullptr); }

    bf16 *normed, *heads, *attended, *inner;
    float* summed;
    int64_t* rows;  // [num_groups][num_tokens] pool row of each new token
    Tile* tiles;
    AttentionScratch attention;

  private:
    static constexpr int64_t SUMS_BYTES = 2 * CHUNK_ROWS * PANEL * 4;

    char* own(int thread) const { return private_ + thread * private_bytes_; }

    template <class T>
    T* take(int64_t bytes) {
        T* place = reinterpret_cast<T*>(at_);
        at_ += round_up(bytes);
        return place;
    }

    char* at_;
    char* private_;
    int64_t private_bytes_, unpacked_bytes_;
};
