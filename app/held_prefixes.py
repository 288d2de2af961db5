"""What of a prompt engines probably hold, in tokens: the prefix index, what lies between its keys,
and how far each engine is to be believed.

Learns from what engines report of each request. Must not choose or send.
"""

from collections.abc import Mapping

from app.member import Send
from app.queue import Job
from app.routing.candidate import NOTHING_HELD, HeldPrefix
from app.routing.doubt import HitDoubt
from app.routing.index import NO_KEYS, HeldKeys, PrefixIndex
from app.routing.stride_remainder import StrideRemainder
from engine.messages import KEY_STRIDE, ModelCard


class HeldPrefixes:
    """Of one model's engines."""

    def __init__(self, max_bytes: int) -> None:
        self.index = PrefixIndex(max_bytes)
        self._remainder = StrideRemainder(KEY_STRIDE)
        self._doubt = HitDoubt()

    def match(self, job: Job) -> Mapping[str, HeldKeys]:
        """By engine. A prompt whose log probabilities are asked for is computed whole."""
        if job.sampling.num_prompt_logprobs is not None:
            return {}
        return self.index.match(job.prompt.index_keys)

    def expected(self, card: ModelCard, job: Job, held: HeldKeys) -> HeldPrefix:
        """What the engine of ``card`` holds of ``job``'s prompt, if the index is right."""
        if job.sampling.num_prompt_logprobs is not None:
            return NOTHING_HELD
        on_accelerator = self._tokens(card, job, held.accelerator)
        if held == (held.accelerator,) * len(held):  # the usual case: there are no tiers
            return HeldPrefix(on_accelerator, on_accelerator, on_accelerator)
        in_memory = max(on_accelerator, self._tokens(card, job, held.host))
        on_disk = max(in_memory, self._tokens(card, job, held.disk))
        return HeldPrefix(on_accelerator, in_memory, on_disk)

    def hit_probability(self, engine_id: str, now_s: float) -> float:
        return self._doubt.hit_probability(engine_id, now_s)

    def count_send(self, engine_id: str, job: Job) -> None:
        """``job`` goes there: it counts as held before any event confirms it."""
        self.index.count_send(engine_id, job.request_id, job.prompt.index_keys)

    def settle_send(
        self, engine_id: str, send: Send, num_cached_blocks: int | None, now_s: float
    ) -> bool:
        """The engine has begun with the request or lost it; it found ``num_cached_blocks``, None if
        it did not say so.

        Returns whether its events do not explain that: they do not tell the truth.
        """
        job = send.job
        num_cached_keys = None
        if num_cached_blocks is not None:
            num_cached_keys = num_cached_blocks // KEY_STRIDE
            num_prompt_blocks = len(job.prompt.block_keys)
            self._remainder.learn(send.num_matching, num_prompt_blocks, num_cached_blocks)
            num_predicted = send.num_matching * KEY_STRIDE
            self._doubt.learn(engine_id, num_predicted, num_cached_blocks, now_s)
        return self.index.settle_send(engine_id, job.request_id, num_cached_keys)

    def forget(self, engine_id: str) -> None:
        """The engine left."""
        self.index.forget(engine_id)
        self._doubt.forget(engine_id)

    def _tokens(self, card: ModelCard, job: Job, num_matching: int) -> int:
        num_blocks_beyond = self._remainder.expected_blocks(
            num_matching, len(job.prompt.block_keys)
        )
        num_expected = num_matching * KEY_STRIDE + num_blocks_beyond
        # The last prompt token is always computed, or there would be nothing to sample from.
        return min(round(num_expected * card.block_size_tokens), len(job.prompt.token_ids) - 1)


def held_by(matching: Mapping[str, HeldKeys], engine_id: str) -> HeldKeys:
    return matching.get(engine_id, NO_KEYS)
