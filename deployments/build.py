"""Application builders: what `import_path:` of a `serve run` file names.

Serve reads the type of the one argument from the annotation itself, so annotations must stay real
classes here: postponing them (the `__future__` import) would silently turn typed arguments off.
"""

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from deployments.config import GatewayArgs, ModelArgs
from deployments.discovery import ENGINE_DEPLOYMENT
from deployments.engine_replica import EngineReplica
from deployments.gateway import GatewayReplica
from deployments.model_root import NO_REPLICAS, ModelRoot

GATEWAY_DEPLOYMENT = "Gateway"
ROOT_DEPLOYMENT = "Model"

MAX_CONSTRUCTOR_RETRIES = 2
"""A model that cannot start will not start the tenth time either: say so early."""

HEALTH_CHECK_PERIOD_S = 1.0
HEALTH_CHECK_TIMEOUT_S = 10.0


def build_gateway(args: GatewayArgs) -> Application:
    """The HTTP edge, or a router that stands alone; its `user_config` says for which models."""
    deployment = serve.deployment(
        name=GATEWAY_DEPLOYMENT,
        num_replicas=args.num_replicas,
        max_ongoing_requests=args.max_ongoing_requests,
        graceful_shutdown_timeout_s=args.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        max_constructor_retry_count=MAX_CONSTRUCTOR_RETRIES,
        ray_actor_options={"num_cpus": args.num_cpus, "resources": dict(args.resources)},
    )(GatewayReplica)
    return deployment.bind(args.router)


def build_model(args: ModelArgs) -> Application:
    """One model's engine replicas. The application must be named as the model."""
    engines = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        num_replicas=args.num_replicas,
        graceful_shutdown_timeout_s=args.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        max_constructor_retry_count=MAX_CONSTRUCTOR_RETRIES,
        request_router_config=RequestRouterConfig(
            request_router_class="deployments.discovery:AddressRouter"
        ),
        ray_actor_options={
            "num_cpus": args.reserved_cpus,
            "num_gpus": args.reserved_gpus,
            "resources": dict(args.resources),
        },
    )(EngineReplica)
    root = serve.deployment(
        name=ROOT_DEPLOYMENT, autoscaling_config=NO_REPLICAS, ray_actor_options={"num_cpus": 0}
    )(ModelRoot)
    return root.bind(engines.bind(args))
