"""The product's engines, with Serve's own autoscaling policy deciding how many there are.

Requests reach engines over a channel that Serve knows nothing of, so its counters stay at zero.
Each replica therefore records what it holds, and what waits for it in gateways, under the name of
Serve's own count: Serve's default policy, unchanged, then sees the true sum of running and queued
requests. Nothing here is used in service.
"""

# Serve reads the annotations of builders, so they must stay real classes: no postponing here.
from typing import Any

from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from deployments.build import (
    HEALTH_CHECK_PERIOD_S,
    HEALTH_CHECK_TIMEOUT_S,
    MAX_CONSTRUCTOR_RETRIES,
    ROOT_DEPLOYMENT,
)
from deployments.config import ModelArgs
from deployments.discovery import ENGINE_DEPLOYMENT
from deployments.engine_replica import EngineReplica
from deployments.model_root import NO_REPLICAS, ModelRoot

RUNNING_REQUESTS = "running_requests"
"""`ray.serve._private.common.RUNNING_REQUESTS_KEY`: what is recorded under it replaces Serve's own
count."""


class RivalArgs(BaseModel):
    """`args:` of `build`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelArgs
    autoscaling_config: dict[str, Any]
    """Serve's own."""


class CountedEngineReplica(EngineReplica):
    """Tells Serve what is there and what waits for it."""

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Serve asks as often as its `metrics_interval_s` says."""
        front = self._front
        assert front is not None  # Serve asks replicas that are ready
        ledger = front._ledger  # noqa: SLF001  nobody in service wants these counts
        num_waiting = sum(sum(a.num_waiting) for a in ledger._accounts.values())  # noqa: SLF001
        return {RUNNING_REQUESTS: float(ledger.num_in_flight + num_waiting)}


def build(args: RivalArgs) -> Application:
    """As `deployments.build.build_model`, but for who decides."""
    model = args.model
    engines = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        autoscaling_config=args.autoscaling_config,
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=model.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        max_constructor_retry_count=MAX_CONSTRUCTOR_RETRIES,
        request_router_config=RequestRouterConfig(
            request_router_class="deployments.discovery:AddressRouter"
        ),
        ray_actor_options={"num_cpus": model.reserved_cpus, "num_gpus": model.reserved_gpus},
    )(CountedEngineReplica)
    root = serve.deployment(
        name=ROOT_DEPLOYMENT, autoscaling_config=NO_REPLICAS, ray_actor_options={"num_cpus": 0}
    )(ModelRoot)
    return root.bind(engines.bind(model))
