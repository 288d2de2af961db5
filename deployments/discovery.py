"""How a gateway learns where the engine replicas listen.

Serve keeps every initialized deployment handle informed of the deployment's replicas and of the
metadata each one recorded; its request router sees them first. `AddressRouter` passes them on to
`replica_board` and routes nothing: no request ever goes through a Serve handle.

Serve pickles the router class together with this module, so its methods import what they need.
"""

from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

ENGINE_DEPLOYMENT = "EngineReplica"
"""Name of the deployment of engine replicas in every model's application."""


class AddressRouter(RequestRouter):
    """Publishes the replicas; refuses to route."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        from deployments.replica_board import Replica, replica_board

        replica_board.publish(
            self._deployment_id.app_name,
            tuple(Replica(r.node_id, r.replica_metadata) for r in replicas),
        )

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        raise RuntimeError("engine replicas are reached over their own channel, not by Serve calls")


def follow_engines(application: str) -> DeploymentHandle[Any]:
    """Make Serve report the engine replicas of `application`, now or once it is deployed.

    Keep the handle: Serve does too, so that reports go on for as long as the process lives, but
    only for the hundred it used last.
    """
    # The check would refuse an application that is still to come.
    handle = serve.get_deployment_handle(ENGINE_DEPLOYMENT, application, _check_exists=False)
    # A handle hears nothing before its first use; asking for options counts as one.
    return handle.options(stream=True)


def follow_gateways(deployment: str, application: str) -> DeploymentHandle[Any]:
    """For calls from a gateway to all gateways, itself included."""
    handle = serve.get_deployment_handle(deployment, application, _check_exists=False)
    return handle.options(stream=False)
