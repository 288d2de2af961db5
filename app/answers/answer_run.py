"""One answer from its prompts' jobs to its last byte, whatever its shape.

Everything that can refuse a request, and the first step of the engine, happen before the status is
sent, so that failures keep their status code.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import orjson
from starlette.types import Send

from app.answers.answer import Answer, AskedPrompt, PromptAnswer
from app.answers.answer_stream import AnswerStream, EventFormat
from app.answers.logprobs import MAX_BYTES_ON_LOOP
from app.answers.openai_objects import AnswerHead
from app.answers.whole_answer import Choice, WholeAnswer
from app.answers.write_times import WriteTimes
from app.bucket_counts import BucketCounts
from app.client_watch import Gone
from app.config import GatewayConfig
from app.dispatch import Dispatcher
from app.queue import Job
from app.record import RequestRecord, TransferOutcome
from app.requests.answer_options import AnswerOptions
from app.requests.session import Session, session_kind
from app.text.tokenization import Prompt
from app.transfers import transfer_of
from engine.messages import SamplingParams, TimelineEvent, Usage

_TIMEOUT_GRACE_S = 2.0
"""The engine ends a request that runs out of time; the gateway does if the engine does not."""

_SETTLE_S = 0.25
"""How long the counts of an answer that was given up are waited for: an engine's next step."""


class AnswerShape(Protocol):
    """One kind of answer."""

    def events(self, head: AnswerHead) -> EventFormat:
        """For a stream."""
        ...

    def whole(self, head: AnswerHead, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """As one JSON object."""
        ...


@dataclass(frozen=True, slots=True)
class PromptRun:
    """A prompt, what the engine is told, and what its samples are to look like."""

    asked: AskedPrompt
    prompt: Prompt
    sampling: SamplingParams
    session: Session


class AnswerRun:
    """Of one HTTP request."""

    def __init__(
        self,
        record: RequestRecord,
        prompts: Sequence[PromptRun],
        options: AnswerOptions,
        shape: AnswerShape,
        *,
        dispatcher: Dispatcher,
        config: GatewayConfig,
        gaps: BucketCounts,
    ) -> None:
        """``gaps`` gets the times between a stream's writes."""
        self._record = record
        self._options = options
        self._shape = shape
        self._dispatcher = dispatcher
        self._config = config
        deadline_s = record.started_s + config.request_timeout_s
        self._answer = Answer(
            [run.asked for run in prompts],
            dispatcher,
            num_samples=options.num_samples,
            is_stream=options.is_stream,
            deadline_s=deadline_s + _TIMEOUT_GRACE_S,
        )
        self._times = WriteTimes(len(self._answer.generations), gaps) if options.is_stream else None
        service_class = record.service_class
        assert service_class is not None, "the route sets it"
        self._jobs = [
            Job(
                request_id=run.asked.request_id,
                prompt=run.prompt,
                sampling=run.sampling,
                answer=prompt_answer,
                arrived_s=record.started_s,
                deadline_s=deadline_s,
                num_samples=options.num_samples,
                service_class=service_class,
                affinity=run.session.affinity,
                session_kind=session_kind(service_class, run.session),
                expected_return_s=run.session.expected_return_s,
                timeline=_beginning(record, len(run.prompt.token_ids)),
            )
            for run, prompt_answer in zip(prompts, self._answer.prompts, strict=True)
        ]
        self._head = AnswerHead(
            record.request_id, int(time.time()), dispatcher.model, record.service_tier
        )
        record.num_prompt_tokens = sum(len(run.prompt.token_ids) for run in prompts)

    async def run(self, send: Send, gone: Gone) -> None:
        """Raises the ``ApiError`` that ended the answer before anything was sent."""
        try:
            if self._times is not None:
                await self._stream(send, gone, self._times)
            else:
                await self._send_whole(send)
        finally:
            self._answer.cancel()
            await self._answer.settle(_SETTLE_S)
            self._note()

    async def _stream(self, send: Send, gone: Gone, times: WriteTimes) -> None:
        def cut() -> None:
            self._record.error = "slow_client"
            if not gone.done():
                gone.set_result(None)

        stream = AnswerStream(
            self._answer,
            self._shape.events(self._head),
            send,
            has_continuous_usage=self._options.has_continuous_usage,
            max_backlog_bytes=self._config.slow_client_buffer_bytes,
            times=times,
            cut=cut,
        )
        await self._begin()
        await stream.run(self._config.sse_keep_alive_s)

    async def _send_whole(self, send: Send) -> None:
        whole = WholeAnswer(self._answer)
        await self._begin()
        await whole.wait()
        usage = self._answer.usage
        build = partial(self._whole_body, whole, usage)
        is_long = whole.num_logprob_bytes > MAX_BYTES_ON_LOOP
        body = await asyncio.to_thread(build) if is_long else build()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _whole_body(self, whole: WholeAnswer, usage: Usage) -> bytes:
        choices = whole.choices(self._options.num_choices)
        return orjson.dumps(self._shape.whole(self._head, choices, usage))

    async def _begin(self) -> None:
        self._dispatcher.enqueue(*self._jobs)
        while not self._answer.has_begun and self._answer.error is None:
            await self._answer.wait()
        if self._answer.error is not None:
            raise self._answer.error
        if self._times is None:  # else it counts when the client has it
            self._record.ttft_s = self._record.elapsed_s

    def _note(self) -> None:
        """The record learns the counts, however the end came."""
        record, answer = self._record, self._answer
        usage = answer.usage
        record.num_cached_tokens = usage.cached_tokens
        record.num_completion_tokens = usage.completion_tokens
        if self._times is not None and self._times.first_s is not None:
            record.ttft_s = self._times.first_s - record.started_s
        if answer.is_finished:
            tpots_s = [prompt.tpot_s(self._span_s(prompt)) for prompt in answer.prompts]
            record.tpot_s = max((tpot_s for tpot_s in tpots_s if tpot_s is not None), default=None)
        record.engine_id = self._jobs[0].engine_id
        record.num_attempts = max(job.num_attempts for job in self._jobs)
        record.num_submissions = sum(job.num_attempts for job in self._jobs)
        record.num_retries = sum(job.num_retries for job in self._jobs)
        record.num_moves = sum(job.num_moves for job in self._jobs)
        self._note_predictions()
        waits_s = [
            job.submitted_s - job.queued_s for job in self._jobs if job.submitted_s is not None
        ]
        record.queue_wait_s = max(waits_s, default=None)
        reasons = {gen.finish.reason for gen in answer.generations if gen.finish is not None}
        record.finish_reason = ",".join(sorted(reasons)) or None
        if answer.error is not None:
            record.error = answer.error.code

    def _note_predictions(self) -> None:
        """What the router expected of each prompt's last attempt, and what came of it."""
        record = self._record
        for job, prompt in zip(self._jobs, self._answer.prompts, strict=True):
            if job.predicted_cached_tokens is not None and job.num_cached_tokens is not None:
                record.predicted.cached_tokens += job.predicted_cached_tokens
                record.actual.cached_tokens += job.num_cached_tokens
            self._note_transfer(job)
            first_s, submitted_s = prompt.first_token_s, job.submitted_s
            if job.predicted_ttft_s is None or first_s is None or submitted_s is None:
                continue
            if first_s >= submitted_s:  # else another engine's, which was lost
                record.predicted.first_token_s += job.predicted_ttft_s
                record.actual.first_token_s += first_s - submitted_s

    def _note_transfer(self, job: Job) -> None:
        expected, restored = job.expected_transfer, job.restored
        if restored is not None:
            self._record.add_restored(restored)
        if expected is not None and job.num_cached_tokens is not None:
            actual = None if restored is None else transfer_of(restored, expected)
            self._record.transfers.append(TransferOutcome(expected, actual))

    def _span_s(self, prompt: PromptAnswer) -> float | None:
        if self._times is None:
            return prompt.span_s
        return self._times.span_s(prompt.sample_indices)


def _beginning(record: RequestRecord, num_tokens: int) -> list[TimelineEvent]:
    events = [TimelineEvent("received", 0.0)]
    if record.tokenized_s is not None:
        at_s = record.tokenized_s - record.started_s
        events.append(TimelineEvent("tokenized", at_s, num_tokens))
    return events
