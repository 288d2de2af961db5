"""What one request may ask of this engine.

A request that breaks a limit is refused before it is planned: in a step it would fail all others of
the batch. Must not know sequences, blocks or runners.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cache_tiers.keys import KEY_BYTES
from engine.errors import RequestError
from engine.kv_geometry import KvGeometry
from engine.messages import EngineRequest, SamplingParams

MAX_NUM_SAMPLES = 128
MAX_BREAKPOINTS = 64
MAX_TTL_S = 30 * 86_400.0
"""Nothing is kept for longer."""
MAX_NUM_LOGPROBS = 128
"""Alternatives per token: a bound for memory, far above what clients may ask for."""


def max_request_tokens(geometry: KvGeometry, *, num_blocks: int, max_model_len: int) -> int:
    """Most tokens of one sequence that has ``num_blocks`` for itself."""
    low, high = 0, max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if geometry.num_blocks_of(middle) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def num_places(request: EngineRequest) -> int:
    """Sequences that a request stands for; a number that is refused is held within the limits."""
    return max(1, min(request.num_samples, MAX_NUM_SAMPLES))


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes of one engine and its model."""

    max_len: int
    """Most tokens of one sequence, prompt and answer together."""
    block_size_tokens: int
    vocab_size: int

    def check(self, request: EngineRequest) -> None:
        """Raise ``RequestError`` for what can never be served here."""
        self._check_prompt(request)
        _check_resumption(request)
        if not 0 <= request.age_s < math.inf:
            raise RequestError("age_s must be a number of at least 0.")
        if math.isnan(request.timeout_s):  # it would never be over
            raise RequestError("timeout_s must be a number.")
        if not 1 <= request.num_samples <= MAX_NUM_SAMPLES:
            raise RequestError(f"The number of samples must lie between 1 and {MAX_NUM_SAMPLES}.")
        sampling = request.sampling
        _check_filters(sampling)
        _check_penalties(sampling)
        if not 0 <= sampling.min_tokens <= sampling.max_tokens:
            raise RequestError("min_tokens must lie between 0 and max_tokens.")
        for name, num in (
            ("num_logprobs", sampling.num_logprobs),
            ("num_prompt_logprobs", sampling.num_prompt_logprobs),
        ):
            most = min(MAX_NUM_LOGPROBS, self.vocab_size)
            if num is not None and not 0 <= num <= most:
                raise RequestError(f"{name} must lie between 0 and {most}.")
        self._check_token_ids("stop_token_ids", sampling.stop_token_ids)
        self._check_token_ids("logit_bias", [token_id for token_id, _ in sampling.logit_bias])
        if not all(math.isfinite(bias) for _, bias in sampling.logit_bias):
            raise RequestError("logit_bias must hold finite numbers.")

    def _check_prompt(self, request: EngineRequest) -> None:
        num_tokens = len(request.token_ids)
        if num_tokens == 0:
            raise RequestError("The prompt is empty.")
        if request.sampling.max_tokens < 0:
            raise RequestError("max_tokens must be at least 0.")
        most = self.max_len - min(1, request.sampling.max_tokens)
        if num_tokens > most:
            raise RequestError(
                f"The prompt has {num_tokens} tokens; at most {most} fit this engine."
            )
        self._check_token_ids("The prompt", request.token_ids)
        _check_keys(request)
        _check_breakpoints(request)
        if len(request.block_keys) != num_tokens // self.block_size_tokens:
            raise RequestError("The prompt's block keys do not match this engine's block size.")

    def _check_token_ids(self, where: str, token_ids: Iterable[int]) -> None:
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(
                    f"{where} holds the token id {token_id}; the model knows 0 to "
                    f"{self.vocab_size - 1}."
                )


def _check_keys(request: EngineRequest) -> None:
    if request.block_keys or request.breakpoints:
        sizes = {len(request.root_key), *map(len, request.block_keys)}
        if sizes != {KEY_BYTES}:
            raise RequestError(f"Block keys must have {KEY_BYTES} bytes.")


def _check_breakpoints(request: EngineRequest) -> None:
    breakpoints = request.breakpoints
    if len(breakpoints) > MAX_BREAKPOINTS:
        raise RequestError(f"A prompt may have at most {MAX_BREAKPOINTS} cache breakpoints.")
    lengths = [0, *(breakpoint_.num_tokens for breakpoint_ in breakpoints)]
    if lengths != sorted(set(lengths)) or lengths[-1] > len(request.token_ids):
        raise RequestError("Cache breakpoints must lie within the prompt, in rising order.")
    if not all(0 < breakpoint_.ttl_s <= MAX_TTL_S for breakpoint_ in breakpoints):
        raise RequestError(f"ttl_s of a cache breakpoint must lie above 0, up to {MAX_TTL_S:.0f}.")
    if not 0 <= (request.expected_return_s or 0.0) <= MAX_TTL_S:
        raise RequestError(f"expected_return_s must lie between 0 and {MAX_TTL_S:.0f}.")


def _check_resumption(request: EngineRequest) -> None:
    """The tokens that a lost engine had generated leave a prompt before and an answer to finish."""
    num_generated = request.num_generated_tokens
    if num_generated == 0:
        return
    if not 0 < num_generated < len(request.token_ids):
        raise RequestError(
            "num_generated_tokens must lie between 0 and the number of tokens, less one for the "
            "prompt."
        )
    if request.num_samples != 1:
        raise RequestError("An answer can be resumed only if it is the only sample.")
    if num_generated >= request.sampling.max_tokens:
        raise RequestError("The answer to be resumed has max_tokens tokens already.")
    if not set(request.sampling.stop_token_ids).isdisjoint(request.token_ids[-num_generated:]):
        raise RequestError("The answer to be resumed ended with a stop token already.")


# All are written so that NaN fails, too.


def _check_filters(sampling: SamplingParams) -> None:
    if not 0 <= sampling.temperature < math.inf:
        raise RequestError("temperature must be a number of at least 0.")
    if not 0 < sampling.top_p <= 1:
        raise RequestError("top_p must lie above 0 and at most at 1.")
    if sampling.top_k < 0:
        raise RequestError("top_k must be at least 0.")
    if not 0 <= sampling.min_p <= 1:
        raise RequestError("min_p must lie between 0 and 1.")
    if not 0 <= sampling.seed < 2**64:
        raise RequestError("seed must be an unsigned number of 64 bits.")


def _check_penalties(sampling: SamplingParams) -> None:
    if not 0 < sampling.repetition_penalty < math.inf:
        raise RequestError("repetition_penalty must be a number above 0.")
    if not math.isfinite(sampling.presence_penalty):
        raise RequestError("presence_penalty must be a finite number.")
    if not math.isfinite(sampling.frequency_penalty):
        raise RequestError("frequency_penalty must be a finite number.")
