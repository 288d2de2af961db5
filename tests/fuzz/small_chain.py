"""A chain with a short context, so that every answer is soon complete."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Literal

from engine.config import EngineConfig, PacedConfig
from tests.integration.chain import Chain, running_chain

MAX_MODEL_LEN = 192
"""Bounds every answer, however many tokens are asked for."""

KV_CACHE_BYTES = 64 * 1024 * 1024
"""Too little for sixteen samples of that length: some are preempted."""


@contextmanager
def small_chain(runner: Literal["paced", "torch"]) -> Iterator[tuple[Chain, asyncio.Runner]]:
    """It runs while the event loop runs something. ``paced`` takes no time for a step."""
    config = EngineConfig(
        runner=runner,
        max_model_len=MAX_MODEL_LEN,
        kv_cache_bytes=KV_CACHE_BYTES,
        paced=PacedConfig(step_base_s=0.0, per_decode_s=0.0, per_prefill_token_s=0.0),
    )
    with asyncio.Runner() as loop:
        stack = AsyncExitStack()
        try:
            yield loop.run(stack.enter_async_context(running_chain(config))), loop
        finally:
            loop.run(stack.aclose())
