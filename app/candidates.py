"""One engine as the policy sees it for one request: what it holds, how fast and how busy it is.

Must not choose, nor know the other engines.
"""

from bisect import bisect_left
from operator import attrgetter

from app.held_prefixes import HeldPrefixes
from app.member import Member
from app.queue import Job, Lane
from app.routing.candidate import Candidate
from app.routing.doubt import HitDoubt
from app.routing.index import HeldKeys
from app.routing.rates import RateBook


class Candidates:
    """Makes them of what a fleet has learned."""

    def __init__(self, prefixes: HeldPrefixes, rates: RateBook, pulls: HitDoubt) -> None:
        """``pulls``: by who pulled, what became of it."""
        self._prefixes = prefixes
        self._rates = rates
        self._pulls = pulls

    def waiting(
        self, member: Member, job: Job, held: HeldKeys, now_s: float, lane: Lane
    ) -> Candidate:
        """What waits in this gateway, in ``lane``, counts if it goes first; of others only the sums
        are known.
        """
        num_before = bisect_left(lane.jobs, job.order, key=attrgetter("order"))
        num_others = len(lane.jobs) - (job.engine_id == member.engine_id)
        num_samples, num_tokens = lane.num_samples, lane.num_tokens
        if num_others < len(lane.jobs):  # it need not wait for itself
            num_samples -= job.num_samples
            num_tokens -= len(job.prompt.token_ids)
        share = num_before / num_others if num_others else 0.0
        return self._candidate(
            member, job, held, now_s, round(share * num_samples), round(share * num_tokens)
        )

    def submitted(self, member: Member, job: Job, held: HeldKeys, now_s: float) -> Candidate:
        """For a ``job`` that waits no more."""
        return self._candidate(member, job, held, now_s, 0, 0)

    def _candidate(
        self,
        member: Member,
        job: Job,
        held: HeldKeys,
        now_s: float,
        num_queued: int,
        num_queued_tokens: int,
    ) -> Candidate:
        card = member.client.card
        has_tiers = card.node_cache is not None
        return Candidate(
            engine_id=member.engine_id,
            load=member.client.load,
            block_size_tokens=card.block_size_tokens,
            held=self._prefixes.expected(card, job, held),
            num_in_flight=member.num_in_flight + num_queued,
            num_unseen=member.num_unseen_samples + num_queued,
            num_unseen_tokens=member.num_unseen_tokens,
            num_queued_tokens=num_queued_tokens,
            max_num_seqs=card.max_num_seqs,
            rates=self._rates.rates(member.engine_id, has_tiers=has_tiers),
            hit_probability=self._prefixes.hit_probability(member.engine_id, now_s),
            age_s=member.view_age_s(now_s),
            can_lend=has_tiers,
            pull_probability=self._pulls.hit_probability(member.engine_id, now_s),
        )
