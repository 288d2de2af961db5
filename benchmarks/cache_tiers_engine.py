"""One loaded model, and engines on it that restore prompts from a node's cache or compute them.

Between two requests the accelerator forgets everything, so that what an answer needs comes from a
tier or is computed. Must not know which tier it is.
"""

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

from cache_tiers.messages import PeerAddress
from deployments.offline_engine import check_output, create_engine
from deployments.offline_requests import OfflineRequests
from engine.config import EngineConfig, EngineSpec
from engine.engine import Engine
from engine.errors import EngineError
from engine.heap import keep_freed_memory
from engine.kv_images import image_layout
from engine.messages import CacheBreakpoint, RestoredTokens
from engine.model_card import model_root_key
from engine.observations import TierStats
from engine.runner import create_runner
from engine.step import StepPlan
from engine.step_output import StepOutput
from engine.tier_setup import use_node_cache
from engine.warm_up import warm_up
from wire.pipe import wait_any

_NUM_ANSWER_TOKENS = 9
_FIRST_TOKEN_ID = 3
_WARM_UP_S = 5.0
_STORE_S = 60.0
_PIN_S = 3600.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """How one request went."""

    ttft_s: float
    decode_s: float
    """Of a decode step behind this prompt: the median."""
    restored: RestoredTokens
    fetch_s: float
    """That the node took."""


class TierModel:
    """Owner of the model. Only one of its engines may be in use at a time."""

    def __init__(self, checkpoint: Path, config: EngineConfig) -> None:
        keep_freed_memory()  # as the engine's process does
        self._spec = EngineSpec(model="benchmark", checkpoint=checkpoint, config=config)
        self._loaded = create_runner(self._spec)
        self._requests = OfflineRequests(config.block_size_tokens)
        self._draw = random.Random(0)
        self._num_requests = 0
        root_key = model_root_key(config, self._loaded.checkpoint)
        layout = image_layout(config, self._loaded.geometry, root_key)
        self.block_size_tokens = config.block_size_tokens
        self.image_bytes = layout.image_bytes
        """Of one block."""

    @contextmanager
    def engine(self, socket_path: Path | None) -> Iterator[Engine]:
        """A warm one, with the tiers of the node behind ``socket_path`` if there is one."""
        config = self._spec.config
        engine = create_engine(self._loaded, config)
        warm_up(
            engine,
            config,
            max_len=engine.max_request_tokens,
            vocab_size=self._loaded.vocab_size,
            limit_s=_WARM_UP_S,
        )
        self.forget(engine)
        spec = self._spec.model_copy(update={"node_cache_socket": socket_path})
        use_node_cache(engine, spec, self._loaded, self._loaded.runner)
        engine.poll_tiers()
        if socket_path is not None and not _tier_stats(engine).is_connected:
            raise EngineError(f"the engine can't use the cache at {socket_path}")
        yield engine
        if engine.tiers is not None:
            engine.tiers.close()

    def forget(self, engine: Engine) -> None:
        """Nothing is left on the accelerator, and another engine may use it."""
        while engine.has_work:
            _step(engine)
        engine.forget()
        self._loaded.runner.execute(
            StepPlan(
                step_id=0,
                released_slots=tuple(range(self._spec.config.max_num_seqs)),
                freed_block_ids=tuple(range(self._loaded.num_blocks)),
                block_copies=(),
                admissions=(),
                scheduled=(),
            )
        )

    def draw_prompt(self, num_tokens: int) -> list[int]:
        ids = range(_FIRST_TOKEN_ID, self._loaded.vocab_size)
        return self._draw.choices(ids, k=num_tokens)

    def ask(
        self,
        engine: Engine,
        prompt: list[int],
        *,
        peer: PeerAddress | None = None,
        is_kept: bool = False,
    ) -> Answer:
        """Greedily. The node gets, and pins, a prompt that ``is_kept``; the accelerator holds
        nothing, before and afterwards. Raises ``EngineError``.
        """
        self._num_requests += 1
        request = self._requests.make(str(self._num_requests), prompt, _NUM_ANSWER_TOKENS)
        fetch_before_s = _tier_stats(engine).fetch_s
        token_ids: list[int] = []
        token_times_s: list[float] = []
        restored = None
        started_s = time.perf_counter()
        pins = [CacheBreakpoint(len(prompt) - 1, _PIN_S)] if is_kept else []
        engine.add(msgspec.structs.replace(request, peer=peer, breakpoints=pins))
        while len(token_ids) < _NUM_ANSWER_TOKENS:
            for delta in _turn(engine).deltas:
                token_ids += delta.token_ids
                token_times_s += [time.perf_counter()] * len(delta.token_ids)
                restored = delta.usage.restored if delta.usage is not None else restored
        fetch_s = _tier_stats(engine).fetch_s - fetch_before_s
        if is_kept:
            _keep(engine)
        self.forget(engine)
        return Answer(
            ttft_s=token_times_s[0] - started_s,
            decode_s=statistics.median(b - a for a, b in pairwise(token_times_s)),
            restored=restored or RestoredTokens(),
            fetch_s=fetch_s,
        )


def _keep(engine: Engine) -> None:
    engine.store_kept()
    deadline_s = time.monotonic() + _STORE_S
    while _tier_stats(engine).num_wanted_blocks > 0:
        _turn(engine)
        if time.monotonic() > deadline_s:
            raise EngineError(f"the node took not all blocks within {_STORE_S:g} s")


def _turn(engine: Engine) -> StepOutput:
    """Of a step loop; waits for the node where there is nothing else to do."""
    engine.poll_tiers()
    if engine.has_work or engine.tiers is None:
        return _step(engine)
    if engine.tiers.pipe is not None:
        wait_any((engine.tiers.pipe,), _POLL_S)
    return StepOutput([], None, engine.load)


def _step(engine: Engine) -> StepOutput:
    output = engine.step()
    check_output(output)
    return output


def _tier_stats(engine: Engine) -> TierStats:
    return engine.stats.tiers or TierStats()
