"""The root that Serve wants every application to have, for applications that nobody calls.

Serve treats the root as the ingress: under HAProxy it would open an HTTP port in every engine
replica, wait half a minute for load balancers before one may leave, and refuse a request router.
So a model's root is this deployment, which never has a replica, and the engines hang below it.
"""

from typing import Any

from ray.serve.config import AutoscalingConfig
from ray.serve.handle import DeploymentHandle

NO_REPLICAS = AutoscalingConfig(min_replicas=0, initial_replicas=0, max_replicas=1)
"""Zero until somebody calls it, which takes a route or a handle that nobody has."""


class ModelRoot:
    """Holds the engines' deployment in the application."""

    def __init__(self, engines: DeploymentHandle[Any]) -> None:
        self._engines = engines

    async def __call__(self) -> None:
        raise RuntimeError("a model is reached through the gateway, not through its application")
