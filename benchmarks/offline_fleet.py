"""Engines without HTTP, gateway or channel: one process each, as many as the served fleet has.

Each process drives its engine in a closed loop, so that the same requests can be served and run
offline in turn.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import EngineSpec
from engine.engine import Engine
from engine.messages import EngineRequest, SamplingParams
from engine.runner import create_runner
from engine.warm_up import warm_up

_WARM_UP_LIMIT_S = 5.0
_REQUEST_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class OfflineLoad:
    """Greedy requests of one engine: so many at a time."""

    run: str
    prompts: Sequence[Sequence[int]]
    concurrency: int
    max_tokens: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OfflineOutcome:
    """What one engine did; times are of the machine's monotonic clock."""

    start_s: float
    end_s: float
    num_tokens: int
    ttfts_s: tuple[float, ...]


class OfflineFleet:
    """Owner of the processes."""

    def __init__(self, spec: EngineSpec, num_engines: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._engines = []
        for _ in range(num_engines):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(spec, theirs), daemon=True)
            process.start()
            theirs.close()
            self._engines.append((process, ours))
        for _, pipe in self._engines:
            pipe.recv()  # ready

    def __len__(self) -> int:
        return len(self._engines)

    def run(self, loads: Sequence[OfflineLoad]) -> list[OfflineOutcome]:
        """Give engine number i ``loads[i]``, all at once; returns when all are done."""
        used = [pipe for (_, pipe), _ in zip(self._engines, loads, strict=False)]
        for pipe, load in zip(used, loads, strict=True):
            pipe.send(load)
        return [pipe.recv() for pipe in used]

    def close(self) -> None:
        for process, pipe in self._engines:
            pipe.close()
            process.join(timeout=10)


def _serve(spec: EngineSpec, pipe: Connection) -> None:
    loaded = create_runner(spec)
    engine = Engine(
        spec.config,
        geometry=loaded.geometry,
        num_blocks=loaded.num_blocks,
        max_model_len=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        runner=loaded.runner,
    )
    warm_up(
        engine,
        spec.config,
        max_len=min(loaded.max_model_len, loaded.num_blocks * spec.config.block_size_tokens),
        vocab_size=loaded.vocab_size,
        limit_s=_WARM_UP_LIMIT_S,
    )
    pipe.send(None)
    try:
        while True:
            pipe.send(_run(engine, spec, pipe.recv()))
    except EOFError:
        engine.close()


def _run(engine: Engine, spec: EngineSpec, load: OfflineLoad) -> OfflineOutcome:
    block_size_tokens = spec.config.block_size_tokens
    root = root_key(KeySalt("benchmark", spec.config.dtype, block_size_tokens, ""))
    sampling = SamplingParams(load.max_tokens, temperature=0.0, stop_token_ids=load.stop_token_ids)
    waiting = [
        EngineRequest(
            f"{load.run}-{number}",
            list(prompt),
            root,
            [*block_keys(root, prompt, block_size_tokens)],
            sampling,
            _REQUEST_TIMEOUT_S,
        )
        for number, prompt in enumerate(load.prompts)
    ]
    waiting.reverse()
    start_s = time.monotonic()
    started_s: dict[str, float] = {}
    ttfts_s: list[float] = []
    num_tokens = num_running = 0
    while waiting or num_running:
        while waiting and num_running < load.concurrency:
            request = waiting.pop()
            started_s[request.request_id] = time.monotonic()
            engine.add(request)
            num_running += 1
        for delta in engine.step().deltas:
            if delta.error is not None:
                raise RuntimeError(f"the engine failed: {delta.error}")
            num_tokens += len(delta.token_ids)
            if delta.request_id in started_s and delta.token_ids:
                ttfts_s.append(time.monotonic() - started_s.pop(delta.request_id))
            num_running -= delta.finish_reason is not None
    return OfflineOutcome(start_s, time.monotonic(), num_tokens, tuple(ttfts_s))
