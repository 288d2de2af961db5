from benchmarks.vllm_environment import vllm_environment


def test_vllm_is_bound_to_all_cores_of_ours() -> None:
    assert vllm_environment([0, 1], kv_cache_gib=2) == {
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "OMP_NUM_THREADS": "2",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    bound = {
        (0, 1, 2): "0-2",
        (1, 3): "1,3",
        (5,): "5",
        (0, 2, 5): "0,2,5",
    }
    for cores, expected in bound.items():
        environment = vllm_environment(cores, kv_cache_gib=1)
        assert environment["VLLM_CPU_OMP_THREADS_BIND"] == expected
        assert environment["OMP_NUM_THREADS"] == str(len(cores))
