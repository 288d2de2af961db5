// What Python calls to choose tokens (engine/native/library.py declares the same for ctypes).
//
// Logits are float32 [num_rows][vocab_size]; sample i belongs to row rows[i], of which there may be
// several. A sample's result depends on its own row and parameters alone. Memory as in api.h.
#pragma once
#include <cstdint>

extern "C" {

// Bytes that `scratch` needs below, on as many OpenMP threads as the caller has now.
int64_t sampling_scratch_bytes(int64_t vocab_size);

// Of each sample the tokens whose logits lie within margins[i] of the largest, in the order of ids
// [num_samples][max_found]; places that are left repeat the last one. `num_found` is how many there
// are: 0 where the row holds NaN, or its largest logit is infinite. Where there would be more than
// `max_found` the margin is halved until there are not, or all of them are equal; one that is not
// finite counts as 0.
void find_near_largest(const float* logits, int64_t vocab_size, const int64_t* rows,
                       const float* margins, int32_t num_samples, int32_t max_found, void* scratch,
                       int64_t* ids, int32_t* num_found);

// A token of each sample, drawn as engine/sampling/drawing.py says. `params` are its columns
// [5][num_samples]: temperature, top-k, top-p, min-p, the random number. -1 where the row holds
// NaN, or its largest logit is infinite.
void draw_tokens(const float* logits, int64_t vocab_size, const int64_t* rows, const double* params,
                 int32_t num_samples, void* scratch, int64_t* tokens);
}
