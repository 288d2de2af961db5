"""One engine in this process, driven step by step: no HTTP, no channel, no Ray.

For the command line. Must not know what is measured.
"""

import random
from pathlib import Path

from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.errors import EngineError
from engine.observations import StepRecord
from engine.profile import Profile, ProfileOrder
from engine.profiling import StepProfiler
from engine.runner import LoadedRunner, check_start, create_runner
from engine.step_output import StepOutput

_FIRST_TOKEN_ID = 3
"""Below are special ones, as a rule."""


def create_engine(
    loaded: LoadedRunner, config: EngineConfig, *, num_blocks: int | None = None
) -> Engine:
    """One that works with the first ``num_blocks`` of the pool, or with all."""
    return Engine(
        config,
        geometry=loaded.geometry,
        num_blocks=num_blocks or loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )


def check_output(output: StepOutput) -> None:
    """Raises `EngineError` if a request failed in the step."""
    for delta in output.deltas:
        if delta.error is not None:
            raise EngineError(f"request {delta.request_id}: {delta.error}")


class OfflineEngine:
    """Owner of an engine; ``close`` ends it."""

    def __init__(self, name: str, checkpoint: Path, config: EngineConfig) -> None:
        """Loads the model. Raises `EngineError` in words that say what to change."""
        spec = EngineSpec(model=name, checkpoint=checkpoint, config=config)
        check_start(spec)
        loaded = create_runner(spec)
        self._vocab_size = loaded.vocab_size
        self._config = config
        self._requests = OfflineRequests(config.block_size_tokens)
        self._engine = create_engine(loaded, config)
        # What stays on this machine need not be small.
        self._profiler = StepProfiler(loaded.probe, max_trace_bytes=2**30)
        self._draw = random.Random(0)  # noqa: S311 - made-up prompts
        self.max_request_tokens = self._engine.max_request_tokens
        self.num_kv_tokens = loaded.num_blocks * config.block_size_tokens
        """Of all sequences together."""
        self.kv_token_bytes = loaded.geometry.token_bytes

    def prompt_tokens_beside(self, num_decodes: int) -> int:
        """Of one step in which so many sequences decode, unless limits for streams' sake are on."""
        config = self._config
        return max(config.min_prefill_chunk_tokens, config.max_num_batched_tokens - num_decodes)

    def add(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        """A made-up prompt, decoded greedily; no token ends the answer early."""
        prompt = [
            self._draw.randrange(min(_FIRST_TOKEN_ID, self._vocab_size - 1), self._vocab_size)
            for _ in range(prompt_len)
        ]
        self._engine.add(self._requests.make(request_id, prompt, max_tokens))

    def step(self) -> tuple[set[str], StepRecord | None]:
        """The requests that got a token, and what the step was. Raises `EngineError`."""
        self._profiler.begin_step()
        output = self._engine.step()
        self._profiler.end_step(output.record)
        check_output(output)
        return {delta.request_id for delta in output.deltas if delta.token_ids}, output.record

    def abort(self, request_ids: set[str]) -> None:
        """End them, and return when nothing runs any more."""
        for request_id in request_ids:
            self._engine.abort(request_id)
        while self._engine.has_work:
            self._engine.step()

    def start_recording(self, order: ProfileOrder) -> None:
        """Of the steps that follow."""
        self._profiler.start(order)

    def recording(self) -> Profile:
        """Of the steps since ``start_recording``."""
        return self._profiler.wait()

    def close(self) -> None:
        self._profiler.close()
        self._engine.close()
