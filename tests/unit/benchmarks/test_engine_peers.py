from benchmarks.engine_peers import fastest_budget, vllm_settings


def test_vllm_is_bound_to_all_cores_of_ours() -> None:
    assert vllm_settings([0, 1]) == {
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "OMP_NUM_THREADS": "2",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
    }
    assert vllm_settings([3])["VLLM_CPU_OMP_THREADS_BIND"] == "3"
    assert vllm_settings([0, 2, 5])["VLLM_CPU_OMP_THREADS_BIND"] == "0,2,5"


def test_the_budget_that_is_fastest_over_all_cases_is_taken() -> None:
    trials = {"2048": {"a": 100.0, "b": 100.0}, "4096": {"a": 90.0, "b": 120.0}}
    assert fastest_budget(trials) == "4096"
    trials["4096"]["b"] = 110.0
    assert fastest_budget(trials) == "2048"
