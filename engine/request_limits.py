"""What one request may ask of this engine.

A request that breaks a limit is refused before it is planned: in a step it would fail all others of
the batch. Must not know sequences, blocks or runners.
"""

import math
from dataclasses import dataclass

from engine.errors import RequestError
from engine.messages import EngineRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Sizes of one engine and its model."""

    max_len: int
    """Most tokens of one sequence, prompt and answer together."""
    block_size_tokens: int
    vocab_size: int

    def check(self, request: EngineRequest) -> None:
        """Raise ``RequestError`` for what can never be served here."""
        num_tokens = len(request.token_ids)
        if num_tokens == 0:
            raise RequestError("The prompt is empty.")
        if num_tokens >= self.max_len:
            raise RequestError(
                f"The prompt has {num_tokens} tokens; at most {self.max_len - 1} fit this engine."
            )
        for token_id in (min(request.token_ids), max(request.token_ids)):
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(
                    f"The prompt holds the token id {token_id}; the model knows 0 to "
                    f"{self.vocab_size - 1}."
                )
        if len(request.block_keys) != num_tokens // self.block_size_tokens:
            raise RequestError("The prompt's block keys do not match this engine's block size.")
        _check_sampling(request.sampling)


def _check_sampling(sampling: SamplingParams) -> None:
    # Written so that NaN fails, too.
    if sampling.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1.")
    if not 0 <= sampling.temperature < math.inf:
        raise RequestError("temperature must be a number of at least 0.")
    if not 0 < sampling.top_p <= 1:
        raise RequestError("top_p must lie above 0 and at most at 1.")
    if not 0 <= sampling.seed < 2**64:
        raise RequestError("seed must be an unsigned number of 64 bits.")
