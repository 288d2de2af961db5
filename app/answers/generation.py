"""One sample as its deltas come: tokens to text, stop strings, log probabilities, the end.

Knows no HTTP, no other samples and no engine: whoever pushes the deltas hands the pieces on and
tells the engine of a stop string.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from app.answers.stop_strings import StopStrings
from app.answers.token_trace import TokenTrace, TracedToken
from app.errors import ApiError, EngineError, InvalidRequestError, RequestTimeoutError
from app.text.detokenizer import Detokenizer
from engine.messages import FinishReason, TokenDelta, Usage

FinishedBy = Literal["stop", "length"]


class Piece(NamedTuple):
    """What one step added to the text."""

    text: str
    token_ids: Sequence[int] = ()
    """Those that came since the last piece, if they are collected."""
    tokens: Sequence[TracedToken] = ()
    """Those that ``text`` is made of, if they are traced."""


class Finish(NamedTuple):
    """How a sample ended well."""

    reason: FinishedBy
    usage: Usage


@dataclass(frozen=True, slots=True)
class TextRules:
    """How the tokens of a request's samples become text."""

    create_detokenizer: Callable[[], Detokenizer]
    stops: tuple[str, ...] = ()
    includes_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    """Counted, never shown, if they end the sample."""
    min_tokens: int = 0
    """Stop strings are looked for behind so many tokens."""
    bytes_of: Callable[[int], bytes] | None = None
    """What the vocabulary says about a token; traces tokens if given."""
    collects_token_ids: bool = False


class Generation:
    """State of one sample."""

    def __init__(self, rules: TextRules, num_prompt_tokens: int) -> None:
        self.finish: Finish | None = None
        self.error: ApiError | None = None
        self.num_tokens = 0
        """Tokens received, those after a stop string included."""
        self.num_kept_tokens: int | None = None
        """Up to the one that completed a stop string: the text is complete."""
        self.logprob_sum = 0.0
        """Of the tokens that are kept, if the engine reports them."""
        self._rules = rules
        self._detokenizer = rules.create_detokenizer()
        self._stops = (
            StopStrings(rules.stops, includes_stop=rules.includes_stop) if rules.stops else None
        )
        self._trace = None if rules.bytes_of is None else TokenTrace(rules.bytes_of)
        self._is_plain = not (rules.stops or rules.bytes_of or rules.collects_token_ids)
        self._num_traced_bytes = 0
        """Text that stop strings let through and the trace still holds."""
        self._token_ids: list[int] = []
        self._tokens: list[TracedToken] = []
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens = 0
        self._usage: Usage | None = None

    def push(self, delta: TokenDelta) -> Piece | None:
        """Take in what one step added; nothing if it brought no text that may be shown."""
        if self._is_plain and delta.finish_reason is None and delta.logprobs is None:
            # What most deltas are, without asking for each token what it might be.
            self.count(delta)
            text = "".join(map(self._detokenizer.push, delta.token_ids))
            return Piece(text) if text else None
        piece = None if self.num_kept_tokens is not None else self._take_in(delta)
        self.count(delta)
        if delta.finish_reason is not None:
            self._end(delta, delta.finish_reason)
        return piece

    def count(self, delta: TokenDelta) -> None:
        """Take in the counts only, once nobody wants the text."""
        self.num_tokens += len(delta.token_ids)
        if delta.usage is not None:
            self._num_cached_tokens = delta.usage.cached_tokens
            if delta.finish_reason is not None:
                self._usage = delta.usage

    def take_rest(self) -> Piece:
        """Tokens that came with no text, once the sample has ended."""
        return self._piece("")

    @property
    def is_complete(self) -> bool:
        """No token can change the text any more."""
        return self.finish is not None or self.num_kept_tokens is not None

    @property
    def usage(self) -> Usage:
        """The engine's counts if it sent them, else what was received so far."""
        usage = self._usage or Usage(
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=self._num_cached_tokens,
            completion_tokens=self.num_tokens,
        )
        return usage if self.num_kept_tokens is None else _cut(usage, self.num_kept_tokens)

    @property
    def mean_logprob(self) -> float:
        """Per kept token; 0 without any."""
        return self.logprob_sum / max(1, self.usage.completion_tokens)

    def _take_in(self, delta: TokenDelta) -> Piece | None:
        text = self._add_text(delta)
        kept = self.num_kept_tokens
        num_kept = len(delta.token_ids) if kept is None else kept - self.num_tokens
        if delta.logprobs is not None:
            self.logprob_sum += sum(item.logprob for item in delta.logprobs[:num_kept])
        if self._rules.collects_token_ids:
            self._token_ids += delta.token_ids[:num_kept]
        if self._trace is not None:
            self._num_traced_bytes += len(text.encode())
            text, tokens = self._trace.release(self._num_traced_bytes, is_cut=kept is not None)
            self._num_traced_bytes -= len(text.encode())
            self._tokens += tokens
        return self._piece(text) if text else None

    def _add_text(self, delta: TokenDelta) -> str:
        """The text that stop strings let through; notes the token that completed one."""
        token_ids = delta.token_ids
        if (
            delta.finish_reason is FinishReason.STOP
            and token_ids
            and token_ids[-1] in self._rules.stop_token_ids
        ):
            token_ids = token_ids[:-1]
        num_unscanned = self._rules.min_tokens - self.num_tokens
        parts: list[str] = []
        for position, token_id in enumerate(token_ids):
            text = self._detokenizer.push(token_id)
            if self._trace is not None:
                assert delta.logprobs is not None, "the engine sent no log probabilities"
                self._trace.push(token_id, delta.logprobs[position], text)
            if self._stops is None or not text or position < num_unscanned:
                parts.append(text)
                continue
            scanned = self._stops.push(text)
            parts.append(scanned.text)
            if scanned.is_stopped:
                self.num_kept_tokens = self.num_tokens + position + 1
                return "".join(parts)
        if delta.finish_reason is not None:
            parts.append(self._flush(self.num_tokens + len(delta.token_ids)))
        return "".join(parts)

    def _flush(self, num_tokens: int) -> str:
        """What the end releases; a stop string in it keeps all ``num_tokens``."""
        rest = self._detokenizer.flush()
        if self._trace is not None:
            self._trace.end(rest)
        if self._stops is None or num_tokens <= self._rules.min_tokens:
            return rest
        scanned = self._stops.push(rest)
        if scanned.is_stopped:
            self.num_kept_tokens = num_tokens
            return scanned.text
        return scanned.text + self._stops.flush()

    def _piece(self, text: str) -> Piece:
        piece = Piece(text, self._token_ids, self._tokens)
        self._token_ids, self._tokens = [], []
        return piece

    def _end(self, delta: TokenDelta, reason: FinishReason) -> None:
        if self.num_kept_tokens is not None:
            # The text is complete, whatever became of the engine since.
            self.finish = Finish("stop", self.usage)
        elif reason is FinishReason.STOP:
            self.finish = Finish("stop", self.usage)
        elif reason is FinishReason.LENGTH:
            self.finish = Finish("length", self.usage)
        elif reason is FinishReason.TIMEOUT:
            self.error = RequestTimeoutError("The request took longer than the server allows.")
        elif delta.is_refused:
            self.error = InvalidRequestError(delta.error or "The engine refused the request.")
        else:
            self.error = EngineError(delta.error or "The engine ended the request.")


def _cut(usage: Usage, num_kept_tokens: int) -> Usage:
    """The engine may have ended the sample before it heard of the stop string."""
    num_overrun = max(0, usage.completion_tokens - num_kept_tokens)
    return msgspec.structs.replace(
        usage,
        completion_tokens=usage.completion_tokens - num_overrun,
        overrun_tokens=usage.overrun_tokens + num_overrun,
    )
