"""A chain that answers as fast as the code around the model allows."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from engine.config import EngineConfig, PacedConfig
from tests.integration.chain import Chain, running_chain

MAX_MODEL_LEN = 192
"""Bounds every answer, however many tokens are asked for."""

CONFIG = EngineConfig(
    runner="paced",
    max_model_len=MAX_MODEL_LEN,
    kv_cache_bytes=64 * 1024 * 1024,
    paced=PacedConfig(step_base_s=0.0, per_decode_s=0.0, per_prefill_token_s=0.0),
)


@contextmanager
def paced_chain() -> Iterator[tuple[Chain, asyncio.Runner]]:
    """It runs while ``runner`` runs something."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner.run(stack.enter_async_context(running_chain(CONFIG))), runner
        finally:
            runner.run(stack.aclose())
