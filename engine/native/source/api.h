// What Python calls (engine/native/library.py holds the same structures for ctypes).
//
// All memory belongs to the caller and outlives the call. Matrices are row-major. Every function
// runs on the OpenMP threads of the calling thread; several callers at once are not supported.
#pragma once
#include <cstdint>

extern "C" {

enum WeightFormat : int32_t {
    BF16 = 0,  // panels of 32 output columns: [out / 32][in / 2][32][2]
    INT8 = 1,  // see quantized.h
    INT4 = 2,
    INT6 = 3,
};

// y = x W^T + b with packed weights; out_features is padded with zeros to whole panels.
struct Linear {
    const void* data;
    const float* scales;  // of quantized formats, else null
    const float* bias;    // [out_features] or null
    int32_t format;
    int32_t in_features;
    int32_t out_features;  // before padding
};

struct Layer {
    const float* input_norm;  // [hidden], with the family's offset
    Linear qkv;               // queries, keys, values side by side
    const float* query_norm;  // [head_dim] or null
    const float* key_norm;
    Linear output;
    const float* output_norm;  // [hidden] or null
    const float* mlp_norm;
    Linear gate_up;  // a panel of gate, then a panel of up, and so on, in whole panels: that counts
                     // for out_features, scales and bias, too
    Linear down;
    const float* mlp_output_norm;  // [hidden] or null
    int32_t rotary;                // index into Step::cos
    int32_t kv_group;              // index into Step::groups
};

enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

struct Model {
    int32_t hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size;
    int32_t activation;
    int32_t num_layers;
    float norm_eps, attention_scale;
    const Layer* layers;
};

// One KV group of a step.
struct Group {
    const int64_t* block_tables;  // [num_seqs][table_stride]
    int64_t table_stride;
    int64_t window;  // tokens that a token attends to, itself included; 0: all before it
};

struct Step {
    int32_t num_tokens, num_seqs;
    int32_t block_size;      // tokens
    const int64_t* starts;   // [num_seqs] position of the first new token
    const int64_t* num_new;  // [num_seqs] new tokens, sequence after sequence
    const float* cos;        // [num_rotaries][num_tokens][head_dim / 2]
    const float* sin;
    const Group* groups;
    void* const* kv_layers;  // per layer [rows][2][num_kv_heads][head_dim] bf16
    float* x;                // [num_tokens][hidden_size] residual stream, changed in place
    void* scratch;           // scratch_bytes(model, num_tokens), aligned to 64
};

// Nanoseconds that the calling thread spent in each part, added up over calls.
struct PhaseTimes {
    int64_t norm, qkv, rotate, attention, output, mlp, down, head;
};

// Bytes that `Step::scratch` needs.
int64_t scratch_bytes(const Model* model, int32_t num_tokens);

// Layers [first, last), whole.
void run_layers(const Model* model, const Step* step, int32_t first, int32_t last,
                PhaseTimes* times);

// For tensor-parallel ranks: one half of a layer (0 attention, 1 MLP) up to the rank's part of the
// sum, written to `partial` [num_tokens][hidden_size]; the caller adds up those of all ranks and
// `add_half` norms the sum, where the family does, and adds it to the residual stream.
void run_half(const Model* model, const Step* step, int32_t layer, int32_t half, float* partial,
              PhaseTimes* times);
void add_half(const Model* model, const Step* step, int32_t layer, int32_t half,
              const float* partial, PhaseTimes* times);

// What is wanted of a row of logits (engine/layers/greedy_head.py); both are possible.
enum RowWish : uint8_t {
    PICK_TOKEN = 1,   // the likeliest token
    KEEP_LOGITS = 2,  // the row itself; else it is left undefined
};

// Choosing likeliest tokens as engine/sampling/greedy.py says, while the logits are computed.
struct Greedy {
    const uint8_t* wishes;  // [num_rows] sums of RowWish
    const uint16_t* table;  // [out_features][in_features] bf16 that the weights were packed of, for
                            // logits of rows that are not rounded; null: the logits are exact
    float largest_norm;     // of the table's rows, in Euclid's norm; 0 without a table
    int64_t* tokens;        // [num_rows] of those that want one; -1 where a row holds NaN, or its
                            // largest logit is infinite
};

// logits [num_rows][out_features] in float32 of `rows` [num_rows][in_features], normed, float32;
// they are rounded to bf16 first. Without `greedy` all rows are kept. `scratch` has
// logits_scratch_bytes.
int64_t logits_scratch_bytes(const Linear* head, int32_t num_rows);
void compute_logits(const Linear* head, const float* rows, int32_t num_rows, float* logits,
                    void* scratch, const Greedy* greedy, PhaseTimes* times);

// 0 if this processor lacks an instruction set that the library was compiled for.
int32_t can_run();
}
