"""Collects one answer that is sent as a whole. Must not know HTTP or JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from app.answer import Answer
from app.generation import FinishedBy, Generation, Piece
from app.token_trace import TracedToken


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


class WholeAnswer:
    """Becomes the sink of ``answer``."""

    def __init__(self, answer: Answer) -> None:
        answer.sink = self
        self._answer = answer
        self._pieces: list[list[Piece]] = [[] for _ in answer.generations]

    def begin(self, index: int) -> None:
        pass

    def add(self, index: int, piece: Piece) -> None:
        self._pieces[index].append(piece)

    def finish(self, index: int, reason: FinishedBy, rest: Piece) -> None:
        self._pieces[index].append(rest)

    def restart(self, index: int) -> None:
        self._pieces[index] = []

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
            for sample in _best(prompt.generations, num_choices):
                choices.append(
                    self._choice(
                        len(choices), self._pieces[first_index + sample], prompt.generations[sample]
                    )
                )
            first_index += len(prompt.generations)
        return choices

    def _choice(self, index: int, pieces: Sequence[Piece], generation: Generation) -> Choice:
        assert generation.finish is not None
        return Choice(
            index=index,
            text="".join(piece.text for piece in pieces),
            token_ids=list(chain.from_iterable(piece.token_ids for piece in pieces)),
            tokens=list(chain.from_iterable(piece.tokens for piece in pieces)),
            finish_reason=generation.finish.reason,
        )


def _best(generations: Sequence[Generation], num_choices: int) -> list[int]:
    samples = range(len(generations))
    if num_choices == len(generations):
        return list(samples)
    return sorted(samples, key=lambda sample: -generations[sample].mean_logprob)[:num_choices]
