"""Warm-up: runs the engine on made-up requests before the replica reports ready.

The first step of a shape is slow (memory is touched, kernels and threads are set up, code is
compiled): users must not pay for it. It also measures the prefill speed that the first credits
depend on. Goes through the engine itself; must not know the model or the device.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from cache_tiers.keys import KeySalt, block_keys, root_key
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import WarmUpError
from engine.messages import EngineRequest, FinishReason, LoadView, SamplingParams

_REQUEST_TIMEOUT_S = 600.0
_NUM_DECODE_STEPS = 3


@dataclass(frozen=True, slots=True)
class WarmUpRound:
    """Requests of one prompt length that run together."""

    num_requests: int
    prompt_len: int


def warm_up_rounds(config: EngineConfig, max_len: int) -> list[WarmUpRound]:
    """A mix of prompt lengths up to a full chunk, and of decode batch sizes; the longest first.

    ``max_len`` is the most tokens that one request can hold.
    """
    longest = max(1, min(config.max_num_batched_tokens, max_len - _NUM_DECODE_STEPS - 1))
    rounds = [WarmUpRound(1, longest), WarmUpRound(1, min(16, longest))]
    num_requests = 2
    while num_requests <= config.max_num_seqs:
        share = max(1, longest // num_requests)
        rounds.append(WarmUpRound(num_requests, min(16, share)))
        num_requests *= 4
    return rounds


def warm_up(
    engine: Engine,
    config: EngineConfig,
    *,
    max_len: int,
    vocab_size: int,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> LoadView:
    """Run the rounds, as many as start within ``limit_s``, and leave the engine as if new.

    Returns its load view, with the measured speeds. Raises ``WarmUpError`` if a request fails.
    """
    draw = random.Random(0)  # noqa: S311 - made-up prompts
    started_s = clock()
    for index, round_ in enumerate(warm_up_rounds(config, max_len)):
        if index > 0 and clock() - started_s > limit_s:
            break
        for number in range(round_.num_requests):
            prompt = [draw.randrange(vocab_size) for _ in range(round_.prompt_len)]
            engine.add(_request(f"warm-up-{index}-{number}", prompt, config.block_size_tokens))
        _run(engine)
    engine.forget()
    return engine.step().load


def _request(request_id: str, prompt: list[int], block_size_tokens: int) -> EngineRequest:
    root = root_key(KeySalt("warm-up", "", block_size_tokens, ""))
    return EngineRequest(
        request_id=request_id,
        token_ids=prompt,
        root_key=root,
        block_keys=[*block_keys(root, prompt, block_size_tokens)],
        sampling=SamplingParams(max_tokens=_NUM_DECODE_STEPS, temperature=1.0, top_p=0.9),
        timeout_s=_REQUEST_TIMEOUT_S,
    )


def _run(engine: Engine) -> None:
    while engine.has_work:
        for delta in engine.step().deltas:
            if delta.finish_reason is FinishReason.ERROR:
                raise WarmUpError(f"the engine failed while it warmed up: {delta.error}")
