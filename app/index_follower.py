"""Keeps what is known of engines true to what they say: loads, cache events, snapshots, and what
they found of the prompts that were sent to them.

Must not choose engines, nor send requests.
"""

from collections.abc import Callable

from app.held_prefixes import HeldPrefixes
from app.member import Member
from app.queue import Job
from app.routing.rates import RateBook
from app.sources import Sources
from app.transfers import num_restored
from engine.messages import CacheEvents, CacheSnapshot

DOUBT_PERIOD_S = 10.0
"""Between two snapshots that wrong predictions ask for."""

SNAPSHOT_TIMEOUT_S = 5.0
"""A snapshot that is not whole by then is asked for again."""


class IndexFollower:
    """Of one model's engines."""

    def __init__(
        self,
        prefixes: HeldPrefixes,
        rates: RateBook,
        sources: Sources,
        clock: Callable[[], float],
    ) -> None:
        self._prefixes = prefixes
        self._rates = rates
        self._sources = sources
        self._clock = clock

    def see_step(self, member: Member, events: CacheEvents | None) -> None:
        """``member``'s load view is new."""
        now_s = self._clock()
        member.see_load(now_s)
        self._rates.see_load(member.engine_id, member.client.load)
        index = self._prefixes.index
        if events is not None and index.apply(member.engine_id, events):
            self._ask_snapshot(member, now_s)
        elif index.is_behind(member.engine_id):
            if member.asked_s is None:
                member.asked_s = now_s
            elif now_s >= member.asked_s + SNAPSHOT_TIMEOUT_S:
                self._ask_snapshot(member, now_s)
        else:
            member.asked_s = None
        self._settle_sends(member, now_s)

    def see_snapshot(self, member: Member, snapshot: CacheSnapshot) -> None:
        """All that ``member`` holds, or a part of it."""
        if self._prefixes.index.seed(member.engine_id, snapshot):
            member.asked_s = None
            member.client.request_snapshot()

    def _ask_snapshot(self, member: Member, now_s: float) -> None:
        member.asked_s = now_s
        member.client.request_snapshot()

    def _settle_sends(self, member: Member, now_s: float) -> None:
        """The engine has begun with some requests, others have ended: its events say what it holds.

        A prediction that its events do not explain means that they do not tell the truth: ask.
        """
        done = [
            send
            for send in member.unconfirmed.values()
            if send.job.has_begun or not member.has(send.job)
        ]
        for send in done:
            del member.unconfirmed[send.job.request_id]
            if send.job.num_cached_tokens is not None and send.job.engine_id == member.engine_id:
                self._sources.learn(member, send.job, now_s)
            num_cached_blocks = _num_cached_blocks(member, send.job)
            is_wrong = self._prefixes.settle_send(member.engine_id, send, num_cached_blocks, now_s)
            is_due = member.doubted_s is None or now_s >= member.doubted_s + DOUBT_PERIOD_S
            if is_wrong and is_due:
                member.doubted_s = now_s
                self._ask_snapshot(member, now_s)


def _num_cached_blocks(member: Member, job: Job) -> int | None:
    """Found by the engine on its accelerator; None if it did not look or has not said so. Of an
    answer that goes on it says only what it found of the prompt.
    """
    is_known = job.num_cached_tokens is not None and job.request_id in member.running
    if not is_known or job.num_generated or job.sampling.num_prompt_logprobs is not None:
        return None
    assert job.num_cached_tokens is not None
    # Of a prompt that is cached whole the last token is computed, and not counted: round up.
    num_tokens = max(0, job.num_cached_tokens - num_restored(job.restored))
    return -(-num_tokens // member.client.card.block_size_tokens)
