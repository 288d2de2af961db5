"""A request at its engine: from its submission to the last word that the engine says of it.

An answer whose engine is lost, or gives it up since it leaves or goes to sleep, goes on elsewhere
from the tokens so far; one of several samples starts over, if nothing of it was shown. Must not
know who waits, nor how an engine is chosen.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from app.demand_meter import DemandMeter
from app.fleet import Fleet
from app.member import Member
from app.queue import Job
from engine.messages import FinishReason, TimelineEvent, TokenDelta

_LOSSES = (FinishReason.ERROR, FinishReason.ABORT)
_MOVED = "its replica leaves or goes to sleep"


class RunningRequests:
    """Of one model. They stand in ``Member.running``."""

    def __init__(
        self,
        fleet: Fleet,
        demand_meter: DemandMeter,
        clock: Callable[[], float],
        *,
        go_on: Callable[[Job], None],
        done: Callable[[Job], None],
        left: Callable[[Member], None],
    ) -> None:
        """Of each job that was submitted ``go_on`` or ``done`` hears once: it is to be submitted
        again (``job.loss``), or has ended. Then ``left`` hears of its engine.
        """
        self._fleet = fleet
        self._demand_meter = demand_meter
        self._clock = clock
        self._go_on = go_on
        self._done = done
        self._left = left

    def submit(self, member: Member, job: Job) -> None:
        """Uses a credit of ``member``."""
        now_s = self._clock()
        job.engine_id = member.engine_id
        job.is_running = True
        job.submitted_s = now_s
        job.num_attempts += 1
        job.num_open_samples = job.num_samples
        job.has_begun = False
        job.num_cached_tokens = None
        job.restored = None
        job.loss = None
        job.is_moving = False
        job.new_token_ids = []
        member.begin(job)
        peer = self._fleet.count_send(member, job)
        age_s = max(0.0, now_s - job.arrived_s)
        job.timeline.append(TimelineEvent("submitted", age_s))
        if (expected := job.expected_transfer) is not None:
            kind = f"source_{expected.kind}"
            job.timeline.append(TimelineEvent(kind, age_s, expected.num_tokens))
        request = job.engine_request(now_s, peer)
        member.client.submit(request, partial(self._on_delta, member, job))

    def _on_delta(self, member: Member, job: Job, delta: TokenDelta) -> None:
        if delta.finish_reason is FinishReason.MOVED and delta.token_ids:
            # Tokens are the answer's, whoever says how it goes on.
            self._on_delta(member, job, msgspec.structs.replace(delta, finish_reason=None))
            delta = msgspec.structs.replace(
                delta, token_ids=[], logprobs=None, prompt_logprobs=None
            )
        if not job.has_begun:
            job.has_begun = True
            if delta.usage is not None:
                job.num_cached_tokens = delta.usage.cached_tokens
                job.restored = delta.usage.restored
        if job.loss is None and not job.is_seed:
            self._count(job, delta)
        if delta.finish_reason is not None:
            self._end_sample(member, job, delta)
        elif job.loss is None:
            if job.num_samples == 1:
                job.new_token_ids += delta.token_ids
            job.answer.on_delta(delta)

    def _count(self, job: Job, delta: TokenDelta) -> None:
        if delta.token_ids:
            self._demand_meter.generated(job, len(delta.token_ids))
        elif delta.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._demand_meter.begun(job)

    def _end_sample(self, member: Member, job: Job, delta: TokenDelta) -> None:
        num_ended = job.num_open_samples if delta.is_refused else 1
        member.end_samples(job, num_ended)
        if job.loss is None:
            if self._is_to_go_on(job, delta):
                job.is_moving = delta.finish_reason is FinishReason.MOVED
                job.loss = _MOVED if job.is_moving else delta.error or "it ended the request"
                if job.num_open_samples and not job.is_moving:  # they are of no use
                    member.client.abort(job.request_id)
            else:
                job.answer.on_delta(delta)
        if job.num_open_samples == 0:
            self._end(member, job)

    def _is_to_go_on(self, job: Job, delta: TokenDelta) -> bool:
        is_over = delta.finish_reason not in (*_LOSSES, FinishReason.MOVED)
        if is_over or delta.is_refused or job.is_cancelled:
            return False
        return (job.answer.is_missing_text and job.is_resumable) or job.answer.can_restart

    def _end(self, member: Member, job: Job) -> None:
        """``job`` has left ``member``: for good, or to go on elsewhere."""
        job.is_running = False
        if job.loss is None or job.is_cancelled:
            self._done(job)
        else:
            if job.is_resumable:
                job.keep_generated(member.client.card.block_size_tokens)
            else:
                job.answer.restart()
                job.num_answer_tokens = 0
            if job.is_moving:
                job.num_moves += 1
            else:
                job.tried.add(member.engine_id)
            self._go_on(job)
        self._left(member)
