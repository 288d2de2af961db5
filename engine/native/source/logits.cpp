// The output head.
#include "api.h"
#include "linear.h"
#include "team.h"

extern "C" {

int64_t logits_scratch_bytes(const Linear* head, int32_t num_rows) {
    const int64_t per_thread =
        CHUNK_ROWS * PANEL * 4 + round_up(int64_t(head->in_features) * PANEL * 2);
    return round_up(int64_t(num_rows) * head->in_features * 2) + per_thread * omp_get_max_threads();
}

void compute_logits(const Linear* head, const float* rows, int32_t num_rows, float* logits,
                    void* scratch, PhaseTimes* times) {
    const int64_t in_size = head->in_features, out_size = head->out_features;
    bf16* rounded = static_cast<bf16*>(scratch);
    char* own = static_cast<char*>(scratch) + round_up(num_rows * in_size * 2);
    const int64_t sums_bytes = CHUNK_ROWS * PANEL * 4;
    const int64_t per_thread = sums_bytes + round_up(in_size * PANEL * 2);
    run_team([&](Member& member) {
        Stopwatch watch(member.thread == 0);
        char* mine = own + per_thread * member.thread;
        member.share(num_rows, ROW_GRAIN, [&](int64_t row) {
            for (int64_t i = 0; i < in_size; i += 16) {
                const __mmask16 mask = lanes(int(std::min<int64_t>(16, in_size - i)));
                const __m512 value = _mm512_maskz_loadu_ps(mask, rows + row * in_size + i);
                _mm256_mask_storeu_epi16(rounded + row * in_size + i, mask, round_to_bf16(value));
            }
        });
        multiply_rows_of(member, *head, rounded, num_rows, 1, reinterpret_cast<float*>(mine),
                         reinterpret_cast<bf16*>(mine + sums_bytes),
                         [&](int64_t row, int count, int64_t panel, const float* sums) {
                             const int64_t first = panel * PANEL;
                             for (int r = 0; r < count; ++r)
                                 for (int i = 0; i < PANEL && first + i < out_size; i += 16)
                                     _mm512_mask_storeu_ps(
                                         logits + (row + r) * out_size + first + i,
                                         lanes(int(std::min<int64_t>(16, out_size - first - i))),
                                         _mm512_loadu_ps(sums + r * PANEL + i));
                         });
        watch.add_to(times->head);
    });
}
}
