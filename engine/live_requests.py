"""The requests that are in the engine, and the deltas about them that no step has told yet.

Must not know what the scheduler does with them.
"""

from engine.messages import EngineRequest, FinishReason, TokenDelta, Usage
from engine.sequence import Sequence


class LiveRequests:
    """Owner of who has not had the last delta, in order of arrival."""

    def __init__(self) -> None:
        self._samples: dict[str, list[Sequence]] = {}
        """Of every request, those that have not ended; never empty."""
        self._deltas: list[TokenDelta] = []

    def __len__(self) -> int:
        """Requests."""
        return len(self._samples)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._samples

    @property
    def has_deltas(self) -> bool:
        """Whether a step has something to tell, even if it computes nothing."""
        return bool(self._deltas)

    @property
    def ids(self) -> list[str]:
        return list(self._samples)

    @property
    def sequences(self) -> list[Sequence]:
        """All samples of all requests."""
        return [sequence for samples in self._samples.values() for sequence in samples]

    def samples_of(self, request_id: str) -> list[Sequence]:
        """That have not ended; none of a request that is not here."""
        return list(self._samples.get(request_id, ()))

    def enter(self, request: EngineRequest, now_s: float, *, max_len: int) -> list[Sequence]:
        """All samples of a request whose id is not here. ``max_len``: most tokens of any sequence
        here, prompt and answer together.
        """
        num_prompt_tokens = len(request.token_ids) - request.num_generated_tokens
        samples = [
            Sequence(
                request,
                deadline_s=now_s + request.timeout_s,
                max_len=min(num_prompt_tokens + request.sampling.max_tokens, max_len),
                index=index,
                taken_s=now_s,
            )
            for index in range(request.num_samples)
        ]
        self._samples[request.request_id] = list(samples)
        return samples

    def refuse(self, request: EngineRequest, error: str) -> None:
        """It never enters: one delta says why."""
        usage = Usage(len(request.token_ids), cached_tokens=0, completion_tokens=0)
        self._deltas.append(
            TokenDelta(
                request.request_id,
                [],
                FinishReason.ERROR,
                usage=usage,
                error=error,
                is_refused=True,
            )
        )

    def expired(self, now_s: float) -> list[Sequence]:
        """Those whose deadline is over; all samples of a request have one."""
        expired = [s for s in self._samples.values() if s[0].deadline_s <= now_s]
        return [sequence for samples in expired for sequence in samples]

    def movable(self, *, only_waiting: bool) -> list[Sequence]:
        """Those that another engine can go on with: the only sample of its request, or one of
        several of which none has begun, which can start over. ``only_waiting``: of requests of
        which nothing runs.
        """
        return [
            sequence
            for samples in self._samples.values()
            if _is_movable(samples)
            and not (only_waiting and any(sample.slot is not None for sample in samples))
            for sequence in samples
        ]

    def deliver(self, sequences: list[Sequence]) -> list[Sequence]:
        """Make the deltas of what each has not told; returns those that ended with it."""
        ended = []
        for sequence in sequences:
            self._deltas.append(sequence.make_delta())
            sequence.mark_delivered()
            if sequence.finish_reason is not None:
                ended.append(sequence)
                samples = self._samples[sequence.request.request_id]
                samples.remove(sequence)
                if not samples:
                    del self._samples[sequence.request.request_id]
        return ended

    def take_deltas(self) -> list[TokenDelta]:
        """Since the last call."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def check_integrity(self, num_scheduled: int) -> None:
        """Raise ``AssertionError`` unless so many samples are here."""
        assert len(self.sequences) == num_scheduled, "live and scheduled sequences differ"
        assert all(self._samples.values()), "a request is live without a sample"


def _is_movable(samples: list[Sequence]) -> bool:
    num_samples = samples[0].request.num_samples
    if num_samples == 1:
        return True
    return len(samples) == num_samples and all(sample.num_new_tokens == 0 for sample in samples)
