"""Where the beginnings of prompts are taken from: decided when a request is sent, and learned from
what its engine then loaded.

Must not choose engines, nor send.
"""

from collections.abc import Mapping

from app.held_prefixes import HeldPrefixes
from app.member import Member
from app.queue import Job
from app.routing.candidate import Source, SourceKind
from app.routing.doubt import HitDoubt
from app.routing.index import HeldKeys
from app.routing.prefill import Holder, Prefill
from app.routing.rates import RateBook
from app.transfers import ExpectedTransfer, transfer_of
from engine.messages import KEY_STRIDE, Medium


class Sources:
    """Of one model's engines."""

    def __init__(self, prefixes: HeldPrefixes, rates: RateBook) -> None:
        self._prefixes = prefixes
        self._rates = rates
        self.pulls = HitDoubt()
        """By who pulled: whether peers gave what was expected of them."""

    def lender(
        self,
        member: Member,
        job: Job,
        members: Mapping[str, Member],
        matching: Mapping[str, HeldKeys],
        now_s: float,
    ) -> Holder | None:
        """Of the other ``members`` whoever has most of the prompt for ``member`` to pull.

        What was sent there and is not computed yet can't be pulled.
        """
        card = member.client.card
        if card.node_cache is None:
            return None
        best: Holder | None = None
        for engine_id in matching:
            other = members.get(engine_id, member)
            if other is member or other.client.card.node_cache is None:
                continue
            num_keys = self._prefixes.index.num_confirmed(
                engine_id, job.prompt.index_keys, Medium.DISK
            )
            chance = self._prefixes.hit_probability(engine_id, now_s)
            num_tokens = chance * num_keys * KEY_STRIDE * card.block_size_tokens
            if num_tokens > (0.0 if best is None else best.num_tokens):
                best = Holder(Source(SourceKind.PEER, engine_id), num_tokens)
        return best

    def pull_under_way(self, member: Member, job: Job) -> str | None:
        """From whom ``member`` is pulling what ``job`` begins with, too: told of it, the node lets
        both wait for the same pull, and the engine does not compute meanwhile what is to come.
        """
        pulls = [s.job for s in member.unconfirmed.values() if s.job.peer_id is not None]
        if not pulls:
            return None
        keys = job.prompt.index_keys
        num_there = self._prefixes.index.num_confirmed(member.engine_id, keys, Medium.DISK)
        next_key = keys[num_there : num_there + 1]
        for pull in pulls:
            # Keys are chained: with this one all before it are the same.
            if next_key and pull.prompt.index_keys[num_there : num_there + 1] == next_key:
                return pull.peer_id
        return None

    def learn(self, member: Member, job: Job, now_s: float) -> None:
        """``member`` has begun with ``job`` and said what it found."""
        expected, restored = job.expected_transfer, job.restored
        if expected is not None and expected.kind is SourceKind.PEER:
            # More than was expected of the accelerator is as good as pulled.
            num_near = (job.predicted_cached_tokens or 0) - expected.num_tokens
            num_found = (job.num_cached_tokens or 0) - num_near
            self.pulls.learn(member.engine_id, expected.num_tokens, num_found, now_s)
        transfer = None if restored is None else transfer_of(restored, expected)
        if transfer is None:
            return
        time_s = transfer.time_s
        if transfer.num_nearer_tokens:
            rates = self._rates.rates(member.engine_id, has_tiers=True)
            time_s -= transfer.num_nearer_tokens / rates.host_tokens_per_s
        self._rates.record_transfer(
            member.engine_id, transfer.kind, transfer.num_tokens, max(0.0, time_s)
        )

    def forget(self, engine_id: str) -> None:
        """The engine left."""
        self.pulls.forget(engine_id)


def expected_transfer(prefill: Prefill) -> ExpectedTransfer | None:
    """What a decision amounts to; None if nothing is loaded."""
    num_tokens = round(prefill.transfer_tokens)
    if prefill.source.kind is SourceKind.LOCAL or num_tokens <= 0:
        return None
    return ExpectedTransfer(prefill.source.kind, num_tokens, prefill.transfer_s)
