"""Ray's own request routers for the engines of `benchmarks.serve_peer`, chosen by each request.

A deployment has one router class. This one leaves every request to the methods of Ray's default
router or of its ``PrefixCacheAffinityRouter``, so that they can be measured in turn on the same
engines. Serve's controller imports it; it must not know engines.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import (
    PrefixCacheAffinityRouter,
)
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter

RouterName = Literal["power_of_two", "ray_prefix", "ray_prefix_10"]

IMBALANCED_THRESHOLDS = {"ray_prefix": float("inf"), "ray_prefix_10": 10.0}
"""Of the prefix router: requests that two replicas may differ by before prefixes count no more.
Infinite is its default; 10 was, and keeps a popular prefix from piling up on one replica."""

_FIRST_CHARACTER = 0x10000
"""Beyond the surrogates, which are no text."""


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """What goes to a peer's engine; the prefix router looks for ``prompt``."""

    payload: bytes
    """An encoded `EngineRequest`."""
    router: RouterName
    prompt: str


def prompt_text(router: RouterName, token_ids: Iterable[int]) -> str:
    """The prompt as text, a character of its own for every token: prompts begin alike as text where
    they do as tokens, and the router's tree has a fifth of the characters to go through."""
    if router not in IMBALANCED_THRESHOLDS:
        return ""
    return "".join([chr(_FIRST_CHARACTER + token_id) for token_id in token_ids])


class SwitchedRouter(PrefixCacheAffinityRouter):  # type: ignore[misc]  # Ray has no types here
    """Precondition: requests of two prefix routers do not mix in time; they share a tree."""

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[Any]:
        threshold = _threshold_of(pending_request)
        if threshold is None:
            replicas: list[Any] = await PowerOfTwoChoicesRequestRouter.choose_replicas(
                self, candidate_replicas, pending_request
            )
            return replicas
        self._imbalanced_threshold = threshold
        return await super().choose_replicas(candidate_replicas, pending_request)  # type: ignore[no-any-return]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        if _threshold_of(pending_request) is not None:
            super().on_request_routed(pending_request, replica_id, result)


def _threshold_of(pending_request: Any) -> float | None:
    """None: the request asks for the default router, or is no request for an answer."""
    arguments = () if pending_request is None else pending_request.args
    # Serve pickles this module by value: a `PeerRequest` here is another class than the sender's.
    router: str = getattr(arguments[0], "router", "") if arguments else ""
    return IMBALANCED_THRESHOLDS.get(router)
