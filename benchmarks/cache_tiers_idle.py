"""What tiers that have nothing to do add to a step: planning alone, the runner computes nothing.

Must not know other cases.
"""

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.cache_tiers_node import running_node
from benchmarks.cache_tiers_pairs import Pairs
from benchmarks.result import CaseResult
from cache_tiers.config import NodeCacheConfig
from deployments.offline_engine import check_output, create_engine
from deployments.offline_requests import OfflineRequests
from engine.config import MIB, EngineConfig, EngineSpec, PacedConfig
from engine.engine import Engine
from engine.errors import EngineError
from engine.runner import create_runner
from engine.tier_setup import use_node_cache

_NUM_SEQS = 32
_PROMPT_LEN = 100
_STEPS_PER_PAIR = 200
_WARM_UP_STEPS = 50
_CONFIG = EngineConfig(
    runner="paced",
    max_num_seqs=_NUM_SEQS,
    max_num_batched_tokens=_NUM_SEQS * _PROMPT_LEN,
    kv_cache_bytes=2048 * MIB,
    paced=PacedConfig(step_base_s=0, per_decode_s=0, per_prefill_token_s=0),
)
_US = 1e6


def measure_idle(checkpoint: Path, num_pairs: int) -> list[CaseResult]:
    """``engine_step_without_tiers``: a step of decodes, without over with."""
    num_steps = _WARM_UP_STEPS + num_pairs * _STEPS_PER_PAIR
    pairs = Pairs()
    config = NodeCacheConfig(host_bytes=64 * MIB)
    # A folder with a short name: socket paths are limited.
    with (
        tempfile.TemporaryDirectory(prefix="hw-") as folder,
        running_node(config, Path(folder) / "node.sock") as node,
    ):
        plain = _busy_engine(checkpoint, num_steps, None)
        tiered = _busy_engine(checkpoint, num_steps, node.socket_path)
        if tiered.stats.tiers is None or not tiered.stats.tiers.is_connected:
            raise EngineError("the engine can't use its node's cache")
        for _ in range(num_pairs):
            pairs.add(lambda: _step_us(plain), lambda: _step_us(tiered))
        plain.close()
        tiered.close()
    return [pairs.result("engine_step_without_tiers", "us", "with idle tiers")]


def _busy_engine(checkpoint: Path, num_steps: int, socket_path: Path | None) -> Engine:
    """All its sequences decode, for so many steps at least."""
    spec = EngineSpec(
        model="benchmark", checkpoint=checkpoint, config=_CONFIG, node_cache_socket=socket_path
    )
    loaded = create_runner(spec)
    engine = create_engine(loaded, _CONFIG)
    use_node_cache(engine, spec, loaded, loaded.runner)
    requests = OfflineRequests(_CONFIG.block_size_tokens)
    for number in range(_NUM_SEQS):
        prompt = [3 + (number * 31 + place) % 90 for place in range(_PROMPT_LEN)]
        engine.add(requests.make(str(number), prompt, num_steps + _PROMPT_LEN))
    for _ in range(_WARM_UP_STEPS):
        engine.poll_tiers()
        check_output(engine.step())
    return engine


def _step_us(engine: Engine) -> float:
    """The median of some."""
    times_us = []
    for _ in range(_STEPS_PER_PAIR):
        started_s = time.perf_counter()
        engine.poll_tiers()
        output = engine.step()
        times_us.append((time.perf_counter() - started_s) * _US)
        check_output(output)
    return statistics.median(times_us)
