// The output head.
#include <optional>

#include "api.h"
#include "greedy.h"
#include "linear.h"
#include "team.h"

namespace {

constexpr int64_t SUMS_BYTES = CHUNK_ROWS * PANEL * 4;

int64_t rounded_bytes(const Linear& head, int64_t num_rows) {
    return round_up(num_rows * head.in_features * 2);
}

int64_t thread_bytes(const Linear& head) {
    return SUMS_BYTES + round_up(int64_t(head.in_features) * PANEL * 2);
}

void round_row(const float* row, int64_t size, bf16* rounded) {
    for (int64_t i = 0; i < size; i += 16) {
        const __mmask16 mask = lanes(int(std::min<int64_t>(16, size - i)));
        _mm256_mask_storeu_epi16(rounded + i, mask,
                                 round_to_bf16(_mm512_maskz_loadu_ps(mask, row + i)));
    }
}

// Sums of one panel, to where they belong in the rows of logits.
void store_sums(const Linear& head, int count, int64_t panel, const float* sums, float* logits) {
    const int64_t first = panel * PANEL, out_size = head.out_features;
    for (int r = 0; r < count; ++r)
        for (int i = 0; i < PANEL && first + i < out_size; i += 16)
            _mm512_mask_storeu_ps(logits + r * out_size + first + i,
                                  lanes(int(std::min<int64_t>(16, out_size - first - i))),
                                  _mm512_loadu_ps(sums + r * PANEL + i));
}

}  // namespace

extern "C" {

int64_t logits_scratch_bytes(const Linear* head, int32_t num_rows) {
    const int num_threads = omp_get_max_threads();
    return rounded_bytes(*head, num_rows) + thread_bytes(*head) * num_threads +
           GreedySearch::bytes(*head, num_rows, num_threads);
}

void compute_logits(const Linear* head, const float* rows, int32_t num_rows, float* logits,
                    void* scratch, const Greedy* greedy, PhaseTimes* times) {
    const int64_t in_size = head->in_features, out_size = head->out_features;
    const int num_threads = omp_get_max_threads();
    bf16* rounded = static_cast<bf16*>(scratch);
    char* own = static_cast<char*>(scratch) + rounded_bytes(*head, num_rows);
    std::optional<GreedySearch> search;
    if (greedy != nullptr)
        search.emplace(*head, *greedy, num_rows, num_threads, logits,
                       own + thread_bytes(*head) * num_threads);
    run_team([&](Member& member) {
        Stopwatch watch(member.thread == 0);
        char* mine = own + thread_bytes(*head) * member.thread;
        if (search) search->begin(member.thread);
        member.share(num_rows, ROW_GRAIN, [&](int64_t row) {
            round_row(rows + row * in_size, in_size, rounded + row * in_size);
            if (search) search->measure(row, rows + row * in_size, rounded + row * in_size);
        });
        multiply_rows_of(member, *head, rounded, num_rows, 1, reinterpret_cast<float*>(mine),
                         reinterpret_cast<bf16*>(mine + SUMS_BYTES),
                         [&](int64_t row, int count, int64_t panel, const float* sums) {
                             if (search)
                                 search->take(member.thread, row, count, panel, sums);
                             else
                                 store_sums(*head, count, panel, sums, logits + row * out_size);
                         });
        if (search)
            member.share(search->num_groups(), 1,
                         [&](int64_t group) { search->choose(group, rows); });
        watch.add_to(times->head);
    });
}
}
