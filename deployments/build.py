"""Application builders: what `import_path:` of a `serve run` file names.

Serve reads the type of the one argument from the annotation itself, so annotations must stay real
classes here: postponing them (the `__future__` import) would silently turn typed arguments off.
"""

from typing import Any

import msgspec
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from deployments.autoscaler import AutoscalerReplica
from deployments.config import AutoscalingArgs, GatewayArgs, ModelArgs
from deployments.discovery import ENGINE_DEPLOYMENT
from deployments.engine_replica import EngineReplica
from deployments.fitting_nodes import bundle_of
from deployments.gateway import GatewayReplica
from deployments.model_root import NO_REPLICAS, ModelRoot
from deployments.plan_messages import ModelWeights

GATEWAY_DEPLOYMENT = "Gateway"
AUTOSCALER_DEPLOYMENT = "Autoscaler"
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
    if not args.autoscaler:
        return deployment.bind(args.router)
    return deployment.bind(args.router, _autoscaler())


def build_model(args: ModelArgs) -> Application:
    """One model's engine replicas. The application must be named as the model."""
    reserved = {
        "num_cpus": args.reserved_cpus,
        "num_gpus": args.reserved_gpus,
        "resources": dict(args.resources),
    }
    engines = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        **_size(args),
        graceful_shutdown_timeout_s=args.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        max_constructor_retry_count=MAX_CONSTRUCTOR_RETRIES,
        request_router_config=RequestRouterConfig(
            request_router_class="deployments.discovery:AddressRouter"
        ),
        ray_actor_options=reserved,
    )(EngineReplica)
    root = serve.deployment(
        name=ROOT_DEPLOYMENT, autoscaling_config=NO_REPLICAS, ray_actor_options={"num_cpus": 0}
    )(ModelRoot)
    return root.bind(engines.bind(args))


def _autoscaler() -> Application:
    """Below the gateway, since Serve deploys what hangs together."""
    deployment = serve.deployment(
        name=AUTOSCALER_DEPLOYMENT,
        num_replicas=1,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        max_constructor_retry_count=MAX_CONSTRUCTOR_RETRIES,
        ray_actor_options={"num_cpus": 0},
    )(AutoscalerReplica)
    return deployment.bind(GATEWAY_DEPLOYMENT)


def _size(args: ModelArgs) -> dict[str, Any]:
    """Options of the engines' deployment: a number, or who finds it."""
    if args.autoscaling is None:
        return {"num_replicas": args.num_replicas}
    policy: dict[str, Any] = {"bundle": bundle_of(args)}
    if (weights := _weights(args)) is not None:
        policy["weights"] = weights
    return {"autoscaling_config": _autoscaling_config(args.autoscaling, policy)}


def _weights(args: ModelArgs) -> dict[str, Any] | None:
    """What the autoscaler tells nodes to hold; None where their caches hold no weights."""
    if args.node_cache is None or args.node_cache.weights is None:
        return None
    weights = ModelWeights(
        args.source,
        args.node_cache.model_dump(mode="json"),
        args.source_sha256,
        args.weights_sha256,
    )
    return msgspec.structs.asdict(weights)


def _autoscaling_config(args: AutoscalingArgs, policy: dict[str, Any]) -> AutoscalingConfig:
    """Serve acts at once on what the policy says: it has weighed that already."""
    return AutoscalingConfig(
        min_replicas=args.min_replicas,
        initial_replicas=args.initial_replicas,
        max_replicas=args.max_replicas,
        upscale_delay_s=0,
        downscale_delay_s=0,
        downscale_to_zero_delay_s=0,
        upscaling_factor=1,
        downscaling_factor=1,
        policy=AutoscalingPolicy(
            policy_function="deployments.scaling_policy:ScalingPolicy",
            policy_kwargs=policy,
        ),
    )
