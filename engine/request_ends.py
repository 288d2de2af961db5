"""How requests end, wherever they are, and how what they generated is told: by deltas.

Must not know why, or what a step is.
"""

import logging

from engine.live_requests import LiveRequests
from engine.load_meter import LoadMeter
from engine.messages import FinishReason
from engine.notes import Notes
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.step_recorder import StepRecorder
from engine.tier_desk import TierDesk

logger = logging.getLogger(__name__)

_STEP_FAILED = "The engine failed while it worked on this request. It can be sent again."
_TOO_LARGE = "The engine has too little memory for this request, even alone."


class RequestEnds:
    """Owner of nothing: joins those who must know that a request is gone."""

    def __init__(
        self,
        live: LiveRequests,
        scheduler: Scheduler,
        tiers: TierDesk | None,
        notes: Notes,
        recorder: StepRecorder,
        meter: LoadMeter,
    ) -> None:
        self._live = live
        self._scheduler = scheduler
        self._tiers = tiers
        self._notes = notes
        self._recorder = recorder
        self._meter = meter

    def finish(self, sequences: list[Sequence], reason: FinishReason) -> None:
        """Between steps, whatever they are doing."""
        for sequence in sequences:
            sequence.finish_reason = reason
            if self._tiers is not None and self._tiers.is_waiting(sequence):
                self._tiers.leave(sequence)
                self._notes.add(sequence, "last_token", sequence.num_generated_tokens)
            else:
                self._scheduler.finish(sequence)
            self.deliver([sequence])

    def deliver(self, sequences: list[Sequence]) -> None:
        """Tell what each has not told; the scheduler knows of those that ended."""
        for ended in self._live.deliver(sequences):
            self._recorder.count_end(ended)
            if ended.admitted_s is not None and ended.finish_reason is not FinishReason.MOVED:
                self._meter.record_answer(self._notes.now_s - ended.admitted_s)

    def finish_too_large(self, sequence: Sequence) -> None:
        """The request of ``sequence`` does not fit into memory, even alone."""
        request_id = sequence.request.request_id
        logger.error("request %s does not fit into memory, even alone", request_id)
        for sample in self._live.samples_of(request_id):
            sample.error = _TOO_LARGE
            self.finish([sample], FinishReason.ERROR)

    def fail_all(self, error: Exception) -> None:
        """From any state: nobody is here any more."""
        request_ids = ", ".join(self._live.ids)
        logger.error("a step failed and ends requests %s", request_ids, exc_info=error)
        self._recorder.num_failed_steps += 1
        self._scheduler.reset()
        if self._tiers is not None:
            self._tiers.forget_requests()
        for sequence in self._live.sequences:
            sequence.finish_reason = FinishReason.ERROR
            sequence.error = _STEP_FAILED
            self._notes.add(sequence, "last_token", sequence.num_generated_tokens)
            self.deliver([sequence])
