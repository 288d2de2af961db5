"""One loaded model that several engines use in turn, and the requests they are asked.

Every configuration that is compared gets an engine of its own, but the weights are loaded once and
all share the pool: a figure differs by the configuration alone. Must not know policies or clocks.
"""

import random
from pathlib import Path

from deployments.offline_engine import check_output, create_engine
from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.heap import keep_freed_memory
from engine.messages import EngineRequest
from engine.runner import create_runner
from engine.step import StepPlan
from engine.step_output import StepOutput
from engine.warm_up import warm_up

_WARM_UP_LIMIT_S = 2.0


class SharedRunner:
    """Owner of the loaded model. Only one of its engines may hold requests at a time."""

    def __init__(self, checkpoint: Path, config: EngineConfig, *, seed: int) -> None:
        """``config`` has the largest steps and the most sequences that any engine will ask for."""
        keep_freed_memory()  # as the engine's process does
        self._loaded = create_runner(
            EngineSpec(model="benchmark", checkpoint=checkpoint, config=config)
        )
        self._max_num_seqs = config.max_num_seqs
        self._requests = OfflineRequests(config.block_size_tokens)
        self._random = random.Random(seed)

    @property
    def num_blocks(self) -> int:
        return self._loaded.num_blocks

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that a sequence of ``num_tokens`` fills."""
        return self._loaded.geometry.num_blocks_of(num_tokens)

    def make_engine(self, config: EngineConfig, *, num_blocks: int | None = None) -> Engine:
        """A warm engine that works with the first ``num_blocks`` of the pool, or with all."""
        loaded = self._loaded
        engine = create_engine(loaded, config, num_blocks=num_blocks)
        warm_up(
            engine,
            config,
            max_len=engine.max_request_tokens,
            vocab_size=loaded.vocab_size,
            limit_s=_WARM_UP_LIMIT_S,
        )
        self.take_back(engine)
        return engine

    def take_back(self, engine: Engine) -> None:
        """Leave ``engine`` and the runner as if new, after the last answers and aborts: another
        engine uses the same slots, and writes over the KV of this one.
        """
        while engine.has_work:
            step(engine)
        engine.forget()
        self._loaded.runner.execute(
            StepPlan(
                step_id=0,
                released_slots=tuple(range(self._max_num_seqs)),
                freed_block_ids=tuple(range(self._loaded.num_blocks)),
                block_copies=(),
                admissions=(),
                scheduled=(),
            )
        )

    def draw_prompt(self, num_tokens: int) -> list[int]:
        """Random tokens, which no earlier prompt began with."""
        return self._random.choices(range(self._loaded.vocab_size), k=num_tokens)

    def make_request(
        self, request_id: str, token_ids: list[int], *, max_tokens: int
    ) -> EngineRequest:
        """Greedy, and with exactly ``max_tokens`` tokens as the answer: nothing ends it before."""
        return self._requests.make(request_id, token_ids, max_tokens)


def step(engine: Engine) -> StepOutput:
    """One step; raises `EngineError` if a request failed in it."""
    output = engine.step()
    check_output(output)
    return output
