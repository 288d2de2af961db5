"""Collects one answer that is sent as a whole, bounded. Must not know HTTP or JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from app.answers.answer import Answer
from app.answers.generation import FinishedBy, Generation, Piece
from app.answers.logprobs import MAX_ANSWER_BYTES, num_alternatives, num_memory_bytes
from app.answers.token_trace import TracedToken
from app.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers that the client is shown."""

    index: int
    text: str
    token_ids: list[int]
    """Empty unless collected."""
    tokens: list[TracedToken]
    """Empty unless traced."""
    finish_reason: FinishedBy


@dataclass(slots=True)
class _Sample:
    """What came of one so far."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    tokens: list[TracedToken] = field(default_factory=list)


class WholeAnswer:
    """Becomes the sink of ``answer``."""

    def __init__(self, answer: Answer, *, max_logprob_bytes: int = MAX_ANSWER_BYTES) -> None:
        """``answer`` fails once its log probabilities take more than ``max_logprob_bytes``."""
        answer.sink = self
        self._answer = answer
        self._max_logprob_bytes = max_logprob_bytes
        self.num_logprob_bytes = 0
        """Of all samples, about."""
        self._samples = [_Sample() for _ in answer.generations]

    def begin(self, index: int) -> None:
        pass

    def add(self, index: int, piece: Piece) -> None:
        sample = self._samples[index]
        sample.texts.append(piece.text)
        sample.token_ids += piece.token_ids
        if piece.tokens:
            sample.tokens += piece.tokens
            self.num_logprob_bytes += _num_bytes(piece.tokens)
            if self.num_logprob_bytes > self._max_logprob_bytes:
                self._refuse()

    def finish(self, index: int, reason: FinishedBy, rest: Piece) -> None:
        self.add(index, rest)

    def restart(self, index: int) -> None:
        self.num_logprob_bytes -= _num_bytes(self._samples[index].tokens)
        self._samples[index] = _Sample()

    async def wait(self) -> None:
        """Until all samples have ended; raises the ``ApiError`` that ended them."""
        while not self._answer.is_finished:
            await self._answer.wait()
            if self._answer.error is not None:
                raise self._answer.error

    def choices(self, num_choices: int) -> list[Choice]:
        """Of each prompt the ``num_choices`` likeliest samples, or all in their order.

        Precondition: the answer is finished.
        """
        choices: list[Choice] = []
        first_index = 0
        for prompt in self._answer.prompts:
            for position in _best(prompt.generations, num_choices):
                sample = self._samples[first_index + position]
                finish = prompt.generations[position].finish
                assert finish is not None
                choices.append(
                    Choice(
                        index=len(choices),
                        text="".join(sample.texts),
                        token_ids=sample.token_ids,
                        tokens=sample.tokens,
                        finish_reason=finish.reason,
                    )
                )
            first_index += len(prompt.generations)
        return choices

    def _refuse(self) -> None:
        self._samples = [_Sample() for _ in self._samples]
        self.num_logprob_bytes = 0
        self._answer.fail(
            InvalidRequestError(
                "The answer's log probabilities are too many to be sent as a whole: ask for fewer "
                "per token, for fewer tokens, or for a stream.",
                param="logprobs",
            )
        )


def _num_bytes(tokens: Sequence[TracedToken]) -> int:
    return num_memory_bytes(len(tokens), num_alternatives(tokens))


def _best(generations: Sequence[Generation], num_choices: int) -> list[int]:
    samples = range(len(generations))
    if num_choices == len(generations):
        return list(samples)
    return sorted(samples, key=lambda sample: -generations[sample].mean_logprob)[:num_choices]
