// The layers of a step, all in one parallel region.
#include "api.h"
#include "team.h"
#include "worker.h"
#include "workspace.h"

namespace {

template <class Work>
void run(const Model* model, const Step* step, PhaseTimes* times, Work work) {
    const Workspace workspace(*model, step->num_tokens, omp_get_max_threads(),
                              static_cast<char*>(step->scratch));
    run_team([&](Member& member) {
        Worker worker(*model, *step, workspace, member, times);
        work(worker);
    });
}

}  // namespace

extern "C" {

int64_t scratch_bytes(const Model* model, int32_t num_tokens) {
    return Workspace(*model, num_tokens, omp_get_max_threads(), nullptr).bytes();
}

void run_layers(const Model* model, const Step* step, int32_t first, int32_t last,
                PhaseTimes* times) {
    run(model, step, times, [&](Worker& worker) {
        worker.prepare();
        for (int index = first; index < last; ++index) {
            worker.attend(model->layers[index], index, nullptr);
            worker.feed_forward(model->layers[index], nullptr);
        }
    });
}

void run_half(const Model* model, const Step* step, int32_t layer, int32_t half, float* partial,
              PhaseTimes* times) {
    run(model, step, times, [&](Worker& worker) {
        if (half == 1) {
            worker.feed_forward(model->layers[layer], partial);
            return;
        }
        worker.prepare();
        worker.attend(model->layers[layer], layer, partial);
    });
}

void add_half(const Model* model, const Step* step, int32_t layer, int32_t half,
              const float* partial, PhaseTimes* times) {
    const Layer& own = model->layers[layer];
    run(model, step, times, [&](Worker& worker) {
        worker.add(partial, half == 0 ? own.output_norm : own.mlp_output_norm);
    });
}

int32_t can_run() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
#ifdef __AVX512BF16__
           && __builtin_cpu_supports("avx512bf16")
#endif
        ;
}
}
