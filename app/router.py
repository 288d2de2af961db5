"""Answers which engine a request should go to, for somebody else who sends it there.

Same choice as the gateway's, but what becomes of a request is not seen here: it counts as running
for as long as answers take there, so that the next ones don't all go to the same engine.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.dispatch import Dispatcher
from app.errors import ContextLengthError, WeightsReplacedError
from app.member import Member
from app.queue import Job
from app.routing.candidate import Candidate, SourceKind
from app.routing.policy import outlook

MAX_ALTERNATIVES = 4

USUAL_ANSWER_S = 5.0
"""Until an engine has measured its own."""
MIN_ANSWER_S, MAX_ANSWER_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class RouteOption:
    """An engine, and what to expect there."""

    engine_id: str
    predicted_cached_tokens: int
    predicted_ttft_s: float
    """From the moment that the engine gets it."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request should go, and where else it could, soonest first."""

    best: RouteOption
    source: SourceKind
    """Where the engine should take the beginning of the prompt from."""
    alternatives: Sequence[RouteOption]


class Router:
    """Of one model. It submits nothing: connections only bring cards, loads and cache events."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def route(self, job: Job) -> Route:
        """Precondition: ``job`` waits nowhere.

        Raises ``ModelLoadingError`` without an engine, ``WeightsReplacedError`` or
        ``ContextLengthError`` if there is none for it any more.
        """
        self._dispatcher.readiness.check(max_wait_s=0)
        fleet = self._dispatcher.fleet
        ranking = fleet.rank(job)
        if ranking is None:  # the fleet has changed since the prompt was made
            if job.prompt.card_root_key not in fleet.root_keys:
                raise WeightsReplacedError(self._dispatcher.model)
            raise ContextLengthError(
                "No replica can hold this prompt and its answer: shorten it.", param="prompt"
            )
        num_tokens = len(job.prompt.token_ids)
        others = [
            _option(candidate, num_tokens)
            for candidate in ranking.candidates
            if candidate is not ranking.choice.candidate
        ]
        others.sort(key=lambda option: option.predicted_ttft_s)
        member = fleet.get(ranking.choice.candidate.engine_id)
        assert member is not None, "it was chosen among the members"
        self._count(member, job)
        return Route(
            _option(ranking.choice.candidate, num_tokens),
            ranking.choice.source.kind,
            others[:MAX_ALTERNATIVES],
        )

    def _count(self, member: Member, job: Job) -> None:
        loop = asyncio.get_running_loop()
        job.engine_id = member.engine_id
        fleet = self._dispatcher.fleet
        fleet.count_routed(member, job)
        usual_s = member.client.load.mean_answer_s or USUAL_ANSWER_S
        kept_s = min(max(usual_s, MIN_ANSWER_S), MAX_ANSWER_S)
        loop.call_later(kept_s, fleet.end_routed, member, job)


def _option(candidate: Candidate, num_tokens: int) -> RouteOption:
    return RouteOption(
        candidate.engine_id,
        min(candidate.num_cached_tokens, num_tokens),
        outlook(num_tokens, candidate).ttft_s,
    )
