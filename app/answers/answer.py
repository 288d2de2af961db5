"""All samples of one HTTP request, of one prompt or several: one failure ends them all.

Written by the deltas as they come, so that a stop string ends its sample within one step however
slowly the client reads; one coroutine waits for the news. Must not know HTTP or JSON.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.answers.generation import FinishedBy, Generation, Piece, TextRules
from app.errors import ApiError, EngineError, RequestTimeoutError
from app.stack_traces import stack_of
from engine.messages import FinishReason, TokenDelta, TokenLogprobs, Usage

logger = logging.getLogger(__name__)


class PieceSink(Protocol):
    """Where the text goes; ``index`` counts the samples of all prompts."""

    def begin(self, index: int) -> None:
        """The sample's first token came, or its end."""
        ...

    def add(self, index: int, piece: Piece) -> None: ...

    def finish(self, index: int, reason: FinishedBy, rest: Piece) -> None:
        """``rest``: tokens that came with no text."""
        ...

    def restart(self, index: int) -> None:
        """The sample starts over. Never called once a streamed one has begun."""
        ...


class Engines(Protocol):
    """What a dispatcher does for an answer; unknown ids are ignored."""

    def abort(self, request_id: str, num_kept_tokens: int | None, index: int | None) -> None: ...

    def cancel(self, request_id: str) -> bool:
        """Returns whether an engine has yet to say its last word."""
        ...


_FAILURES = (
    FinishReason.ABORT,
    FinishReason.TIMEOUT,
    FinishReason.ERROR,
    FinishReason.MOVED,
)

EchoMaker = Callable[[Sequence[TokenLogprobs]], Piece]
"""The prompt as a piece of text, of its log probabilities; those are empty if not asked for."""


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """One prompt and what its samples are to look like."""

    request_id: str
    """Of its job at the engines."""
    num_tokens: int
    rules: TextRules
    echo: EchoMaker | None = None
    """Makes what each sample begins with."""
    has_logprobs: bool = False
    """The engine was asked for the prompt's log probabilities, which ``echo`` needs."""


class Answer:
    """The state of the whole; ``prompts`` in the client's order."""

    def __init__(
        self,
        prompts: Sequence[AskedPrompt],
        engines: Engines,
        *,
        num_samples: int,
        is_stream: bool,
        deadline_s: float,
    ) -> None:
        """``sink`` must be set before the first delta."""
        self.sink: PieceSink
        self.error: ApiError | None = None
        self.is_stream = is_stream
        self.has_begun = False
        """A token came, or an end."""
        self.prompts = [
            PromptAnswer(self, asked, num_samples, first_index=position * num_samples)
            for position, asked in enumerate(prompts)
        ]
        self._engines = engines
        self._deadline_s = deadline_s
        self.is_cancelled = False
        """Deltas are only counted."""
        self._waiter: asyncio.Future[None] | None = None
        self._has_news = False

    @property
    def generations(self) -> list[Generation]:
        return [generation for prompt in self.prompts for generation in prompt.generations]

    @property
    def is_finished(self) -> bool:
        return all(generation.finish is not None for generation in self.generations)

    @property
    def usage(self) -> Usage:
        """A prompt counts once, and every token that was generated, of all samples."""
        usages = [generation.usage for generation in self.generations]
        return Usage(
            prompt_tokens=sum(prompt.generations[0].usage.prompt_tokens for prompt in self.prompts),
            cached_tokens=sum(prompt.num_cached_tokens for prompt in self.prompts),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            overrun_tokens=sum(usage.overrun_tokens for usage in usages),
        )

    # Written by the prompts' deltas.

    def fail(self, error: ApiError) -> None:
        """End all samples, those of other prompts, too."""
        if self.error is None and not self.is_cancelled:
            self.error = error
            self.cancel()
        self.wake()

    def abort(self, prompt: "PromptAnswer", index: int, num_kept_tokens: int) -> None:
        """A sample's text is complete: the engine may stop."""
        sample = index if len(prompt.generations) > 1 else None
        self._engines.abort(prompt.asked.request_id, num_kept_tokens, sample)

    def wake(self) -> None:
        self._has_news = True
        if self._waiter is not None:
            _resolve(self._waiter)

    # Used by the request's coroutine.

    async def wait(self, timeout_s: float = math.inf) -> bool:
        """Until there is something new; False after ``timeout_s`` without.

        Past the deadline the answer has failed, which is news, too.
        """
        left_s = self._deadline_s - time.monotonic()
        if not self._has_news:
            await self._sleep(max(0.0, min(timeout_s, left_s)))
        if not self._has_news and left_s <= timeout_s:
            self.fail(RequestTimeoutError("The request took longer than the server allows."))
        has_news, self._has_news = self._has_news, False
        return has_news

    def cancel(self) -> None:
        """Nobody wants the rest: the engines stop, and what they still say only counts."""
        self.is_cancelled = True
        for prompt in self.prompts:
            prompt.is_awaited = self._engines.cancel(prompt.asked.request_id)

    async def settle(self, timeout_s: float) -> None:
        """Wait for the engines' last counts after ``cancel``, as long as they come quickly."""
        deadline_s = time.monotonic() + timeout_s
        while any(prompt.is_awaited and prompt.num_open_samples for prompt in self.prompts):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            await self._sleep(left_s)

    async def _sleep(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _resolve, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


class PromptAnswer:
    """The samples of one prompt. Implements ``app.queue.Answer``; written by the dispatcher."""

    def __init__(
        self, answer: Answer, asked: AskedPrompt, num_samples: int, *, first_index: int
    ) -> None:
        self.asked = asked
        self.is_awaited = False
        """After ``cancel``: an engine has yet to say its last word."""
        self._answer = answer
        self._num_samples = num_samples
        self._first_index = first_index
        self._start()

    def _start(self) -> None:
        self.generations = [
            Generation(self.asked.rules, self.asked.num_tokens) for _ in range(self._num_samples)
        ]
        self.num_open_samples = self._num_samples
        """Those that have not had their last delta."""
        self._begun: set[int] = set()
        self._echo: Piece | None = None
        self._early: list[TokenDelta] = []
        """Came before the prompt's log probabilities did."""
        self._first_token_s: float | None = None
        self._last_token_s = 0.0

    @property
    def num_cached_tokens(self) -> int:
        return max(generation.usage.cached_tokens for generation in self.generations)

    @property
    def first_token_s(self) -> float | None:
        """When the engine's first token came, of any sample."""
        return self._first_token_s

    @property
    def span_s(self) -> float | None:
        """From the engine's first token to its last one; None without any."""
        return None if self._first_token_s is None else self._last_token_s - self._first_token_s

    @property
    def sample_indices(self) -> range:
        """Of its samples, among those of all prompts."""
        return range(self._first_index, self._first_index + self._num_samples)

    def tpot_s(self, span_s: float | None) -> float | None:
        """Mean time per token after the first, of tokens that came within ``span_s``.

        Samples run side by side, so the longest one counts.
        """
        longest = max(generation.usage.completion_tokens for generation in self.generations)
        return None if span_s is None or longest < 2 else span_s / (longest - 1)

    # As ``app.queue.Answer``.

    @property
    def is_missing_text(self) -> bool:
        return not all(generation.is_complete for generation in self.generations)

    @property
    def can_restart(self) -> bool:
        return self.is_missing_text and not (self._answer.is_stream and self._begun)

    def restart(self) -> None:
        for index in range(self._num_samples):
            self._answer.sink.restart(self._first_index + index)
        self._start()

    def fail(self, error: ApiError) -> None:
        self._answer.fail(error)

    def on_delta(self, delta: TokenDelta) -> None:
        """Never raises: the connection carries other answers, too."""
        if delta.token_ids:
            self._last_token_s = time.monotonic()
            if self._first_token_s is None:
                self._first_token_s = self._last_token_s
        if delta.finish_reason is not None:
            self.num_open_samples = 0 if delta.is_refused else self.num_open_samples - 1
        try:
            if self._answer.is_cancelled:
                self.generations[delta.index].count(delta)
            elif self.asked.echo is None:
                self._push(delta)
            else:
                self._push_behind_echo(self.asked.echo, delta)
        except Exception as error:
            logger.error(
                "request %s: its answer could not be decoded: %s",
                delta.request_id,
                stack_of(error),
            )
            self._answer.fail(EngineError("The answer could not be decoded."))
        self._answer.wake()

    def _push_behind_echo(self, make: EchoMaker, delta: TokenDelta) -> None:
        if self._echo is None and delta.finish_reason not in _FAILURES:
            if delta.prompt_logprobs is None and self.asked.has_logprobs:
                # They come with sample 0; others may be first.
                assert self.num_open_samples, "the engine sent no log probabilities of the prompt"
                self._early.append(delta)
                return
            self._echo = make(delta.prompt_logprobs or ())
        self._push(delta)
        early, self._early = self._early, []
        for later in early:
            self._push(later)

    def _push(self, delta: TokenDelta) -> None:
        sink, index = self._answer.sink, self._first_index + delta.index
        generation = self.generations[delta.index]
        if delta.index not in self._begun and _is_beginning(delta):
            self._begin(delta.index)
        was_complete = generation.is_complete
        piece = generation.push(delta)
        if piece is not None:
            sink.add(index, piece)
        if generation.error is not None:
            self._answer.fail(generation.error)
        elif generation.finish is not None:
            sink.finish(index, generation.finish.reason, generation.take_rest())
        elif generation.num_kept_tokens is not None and not was_complete:
            self._answer.abort(self, delta.index, generation.num_kept_tokens)

    def _begin(self, sample: int) -> None:
        index = self._first_index + sample
        self._begun.add(sample)
        self._answer.has_begun = True
        self._answer.sink.begin(index)
        if self._echo is not None:
            self._answer.sink.add(index, self._echo)


def _is_beginning(delta: TokenDelta) -> bool:
    if delta.finish_reason is None:
        return bool(delta.token_ids)
    return delta.finish_reason not in _FAILURES


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
