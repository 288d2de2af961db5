"""Asks Ray's cluster autoscaler for the nodes of a plan, as soon as it is made, and measures how
long they take to come.

A request holds until the next one, by whomever: it is made when the plan's needs change, and again
once a minute, since an autoscaler that ends takes its own back. Must not know how sizes are found.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set

from autoscaler.plan import Plan
from deployments.node_leads import NodeLeads
from deployments.node_rooms import ClusterNode, num_fitting, num_unplaced

logger = logging.getLogger("ray.serve")

REPEATED_S = 60.0

Bundle = Mapping[str, float]
Request = Callable[[Sequence[dict[str, float]]], Awaitable[None]]


async def request_of_ray(bundles: Sequence[dict[str, float]]) -> None:
    """Blocks for a call of Ray's, in a thread."""
    from ray.autoscaler.sdk import request_resources

    await asyncio.to_thread(request_resources, bundles=list(bundles))


class NodeRequests:
    """What was asked for last."""

    def __init__(
        self, request: Request = request_of_ray, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._request = request
        self._clock = clock
        self._asked_s = 0.0
        self._asked: list[dict[str, float]] = []
        self.leads = NodeLeads()

    async def ask(self, plan: Plan | None, bundles: Mapping[str, Bundle]) -> None:
        """``bundles``: what a replica of each model reserves; None for a plan takes the request
        back. Never raises.
        """
        wanted = [] if plan is None else bundles_of(plan, bundles)
        now_s = self._clock()
        is_old = bool(wanted) and now_s - self._asked_s >= REPEATED_S
        if wanted == self._asked and not is_old:
            return
        try:
            await self._request(wanted)
        except Exception as error:
            logger.warning("no nodes could be asked for: %r", error)
        else:
            self._asked, self._asked_s = wanted, now_s

    def see(self, nodes: Sequence[ClusterNode], ready: Set[str]) -> None:
        """``nodes``: that are alive; ``ready``: those that could take a model's weights by now."""
        usable = [node for node in nodes if node.node_id in ready and self._is_asked_for(node)]
        num_missing = num_unplaced(self._asked, [node.total for node in usable])
        self.leads.update(self._clock(), num_missing, {node.node_id for node in usable})

    def _is_asked_for(self, node: ClusterNode) -> bool:
        return any(num_fitting(node.total, bundle) for bundle in self._asked)


def bundles_of(plan: Plan, bundles: Mapping[str, Bundle]) -> list[dict[str, float]]:
    """One per replica's worth of nodes; nothing for models of which Serve has said nothing yet."""
    return [
        dict(bundles[model.model])
        for model in plan.models
        if bundles.get(model.model)
        for _ in range(model.num_nodes)
    ]
