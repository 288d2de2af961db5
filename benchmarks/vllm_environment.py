"""The environment variables with which a benchmark starts vLLM on CPUs."""

from collections.abc import Sequence


def vllm_environment(cores: Sequence[int], *, kv_cache_gib: int) -> dict[str, str]:
    """A thread on each of ``cores``, none kept back for its front; nothing is asked of the net."""
    return {
        "OMP_NUM_THREADS": str(len(cores)),
        "VLLM_CPU_OMP_THREADS_BIND": _ranges(cores),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _ranges(cores: Sequence[int]) -> str:
    """`0-1` for 0 and 1, `0,2` for 0 and 2."""
    if len(cores) > 1 and list(cores) == list(range(cores[0], cores[-1] + 1)):
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))
