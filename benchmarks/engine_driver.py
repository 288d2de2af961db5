"""Headwater's engine as the benchmark drives it: in this process, step by step, no HTTP, no
channel."""

import gc
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from benchmarks.engine_cases import Case, Prompts
from benchmarks.engine_timing import Speed, measure_speed
from benchmarks.matrix_work import MatrixWork
from deployments.offline_engine import check_output, create_engine
from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.garbage import GarbageCollector
from engine.layers.linear import can_pack
from engine.models.registry import read_model_config
from engine.runner import LoadedRunner, create_runner

_SEED = 0


class EngineDriver:
    """A `SteppedEngine`; owner of one engine of ours."""

    def __init__(self, engine: Engine, config: EngineConfig, garbage: GarbageCollector) -> None:
        self._engine = engine
        self._garbage = garbage
        self._requests = OfflineRequests(config.block_size_tokens)

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        self._engine.add(self._requests.make(request_id, prompt, max_tokens))

    def step(self) -> Mapping[str, int]:
        """With the collection of garbage after it, as the step loop does."""
        output = self._engine.step()
        check_output(output)
        num_new = {
            delta.request_id: len(delta.token_ids) for delta in output.deltas if delta.token_ids
        }
        self._garbage.collect_between_steps()
        return num_new

    def abort(self, request_ids: Collection[str]) -> None:
        for request_id in request_ids:
            self._engine.abort(request_id)
        while self._engine.has_work:
            self.step()

    def close(self) -> None:
        self._engine.close()


class OwnEngine:
    """Headwater among those compared."""

    def __init__(self, checkpoint: Path, config: EngineConfig, name: str = "headwater") -> None:
        """Raises EngineError if the engine can't start."""
        self.name = name
        self.config = config
        loaded = create_runner(EngineSpec(model="benchmark", checkpoint=checkpoint, config=config))
        self.loaded = loaded
        garbage = GarbageCollector()
        self.driver = EngineDriver(create_engine(loaded, config), config, garbage)
        self.prompts = Prompts(_SEED, loaded.vocab_size)
        garbage.take_over()

    def measure(self, case: Case) -> Speed:
        return measure_speed(self.driver, case, self.prompts)

    def cpu_time_s(self) -> float:
        """Of this process, which does nothing else while a peer is measured."""
        return time.process_time()

    def close(self) -> None:
        self.driver.close()


def create_matrix_work(loaded: LoadedRunner, config: EngineConfig) -> MatrixWork:
    """The linear layers of the same model in the faster layout that plain torch has."""
    dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    is_packed = config.weight_layout != "mapped" and can_pack(dtype)
    return MatrixWork(
        read_model_config(loaded.checkpoint.config),
        dtype=dtype,
        layout="packed" if is_packed else "mapped",
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


def give_back_heap() -> None:
    """After the last engine: Python collects garbage by itself again."""
    gc.unfreeze()
    gc.enable()
