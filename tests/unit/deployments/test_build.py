"""What the builders hand to Serve."""

import inspect
import json
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError
from ray.serve import Application
from ray.serve.deployment import Deployment

from cache_tiers.config import NodeCacheConfig, WeightsConfig
from deployments.build import build_gateway, build_model
from deployments.config import AutoscalingArgs, GatewayArgs, ModelArgs
from deployments.plan_messages import ModelWeights
from engine.config import EngineConfig


def _deployment_of(application: Application) -> Deployment:
    return application._bound_deployment


def test_serve_sees_the_type_of_the_arguments() -> None:
    # A string here would make Serve pass the raw mapping.
    assert inspect.signature(build_gateway).parameters["args"].annotation is GatewayArgs
    assert inspect.signature(build_model).parameters["args"].annotation is ModelArgs


def test_a_gateway_waits_for_its_longest_answer_when_it_leaves() -> None:
    deployment = _deployment_of(build_gateway(GatewayArgs(num_replicas=3, longest_answer_s=100)))
    config = deployment._deployment_config
    assert (deployment.name, config.num_replicas) == ("Gateway", 3)
    assert config.graceful_shutdown_timeout_s == 130


def test_engines_hang_below_a_root_that_never_has_a_replica() -> None:
    args = ModelArgs(name="m", source="x", num_replicas=2, engine=EngineConfig(num_threads=4))
    root = _deployment_of(build_model(args))
    assert root.name == "Model"
    autoscaling = root._deployment_config.autoscaling_config
    assert (autoscaling.min_replicas, autoscaling.initial_replicas) == (0, 0)
    (engines,) = root.init_args
    deployment = _deployment_of(engines)
    assert (deployment.name, deployment._deployment_config.num_replicas) == ("EngineReplica", 2)
    assert deployment.ray_actor_options["num_cpus"] == 4
    assert deployment.init_args == (args,)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "a" * 129])
def test_a_model_needs_a_name_that_can_be_a_folder(name: str) -> None:
    with pytest.raises(ValidationError):
        ModelArgs(name=name, source="x")


@pytest.mark.parametrize(
    ("engine", "cpus", "gpus"),
    [
        ({}, 1, 0),
        ({"tensor_parallel_size": 4, "num_threads": 2}, 8, 0),
        ({"device": "cuda"}, 1, 1),
        ({"device": "cuda", "tensor_parallel_size": 8}, 8, 8),
        ({"device": "cuda", "runner": "paced", "tensor_parallel_size": 8}, 8, 0),
    ],
)
def test_a_replica_reserves_threads_and_devices_of_all_its_ranks(
    engine: dict[str, Any], cpus: int, gpus: int
) -> None:
    args = ModelArgs(name="m", source="x", engine=EngineConfig(**engine))
    (engines,) = _deployment_of(build_model(args)).init_args
    options = _deployment_of(engines).ray_actor_options
    assert (options["num_cpus"], options.get("num_gpus", 0)) == (cpus, gpus)


@pytest.mark.parametrize(
    ("num_gpus", "size", "message"),
    [
        (4, 8, "each of 8 ranks on CUDA needs a device: set num_gpus to 8"),
        (0, 1, "set num_gpus to 1"),
        (1.5, 1, "more than one are whole ones"),
    ],
)
def test_too_few_devices_are_refused(num_gpus: float, size: int, message: str) -> None:
    engine = EngineConfig(device="cuda", tensor_parallel_size=size)
    with pytest.raises(ValidationError, match=message):
        ModelArgs(name="m", source="x", num_gpus=num_gpus, engine=engine)
    assert ModelArgs(name="m", source="x", num_gpus=0.5, engine=EngineConfig(device="cuda"))


def test_an_autoscaler_hangs_below_a_gateway_that_asks_for_one() -> None:
    without = _deployment_of(build_gateway(GatewayArgs()))
    assert without.init_args == ("embedded",)
    gateway = _deployment_of(build_gateway(GatewayArgs(autoscaler=True)))
    router, bound = gateway.init_args
    assert router == "embedded"
    autoscaler = _deployment_of(bound)
    assert (autoscaler.name, autoscaler._deployment_config.num_replicas) == ("Autoscaler", 1)
    assert autoscaler.init_args == ("Gateway",)
    assert autoscaler.ray_actor_options["num_cpus"] == 0


def test_serve_acts_at_once_on_the_policy_of_an_autoscaled_model() -> None:
    args = ModelArgs(
        name="m",
        source="x",
        autoscaling=AutoscalingArgs(min_replicas=0, max_replicas=5),
        num_cpus=2,
        resources={"accel_slot": 1},
    )
    (engines,) = _deployment_of(build_model(args)).init_args
    config = _deployment_of(engines)._deployment_config.autoscaling_config
    assert (config.min_replicas, config.initial_replicas, config.max_replicas) == (0, None, 5)
    delays = (config.upscale_delay_s, config.downscale_delay_s, config.downscale_to_zero_delay_s)
    assert delays == (0, 0, 0)
    assert config.policy.policy_function == "deployments.scaling_policy:ScalingPolicy"
    assert config.policy.get_policy()(**config.policy.policy_kwargs)
    assert config.policy.policy_kwargs == {"bundle": {"CPU": 2, "GPU": 0, "accel_slot": 1}}


def test_the_policy_says_what_weights_nodes_are_to_hold() -> None:
    args = ModelArgs(
        name="m",
        source="s3://b/m",
        weights_sha256="ab" * 32,
        autoscaling=AutoscalingArgs(max_replicas=5),
        node_cache=NodeCacheConfig(weights=WeightsConfig(host_bytes=7)),
    )
    (engines,) = _deployment_of(build_model(args)).init_args
    config = _deployment_of(engines)._deployment_config.autoscaling_config
    said = json.loads(json.dumps(config.policy.policy_kwargs["weights"]))
    weights = msgspec.convert(said, ModelWeights)
    assert (weights.source, weights.weights_sha256) == (args.source, args.weights_sha256)
    assert NodeCacheConfig.model_validate(weights.node_cache) == args.node_cache


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min_replicas": 4, "max_replicas": 3}, "min_replicas is 4, more than max_replicas, 3"),
        ({"max_replicas": 3, "initial_replicas": 0}, "initial_replicas is 0: take 1 to 3"),
        ({"max_replicas": 3, "initial_replicas": 4}, "initial_replicas is 4: take 1 to 3"),
        ({"min_replicas": 1}, "max_replicas\n  Field required"),
        ({"max_replicas": 0, "min_replicas": 0}, "greater than or equal to 1"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(bounds: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AutoscalingArgs(**bounds)


def test_a_model_has_one_size() -> None:
    with pytest.raises(ValidationError, match="give num_replicas or autoscaling, not both"):
        ModelArgs(name="m", source="x", num_replicas=2, autoscaling=AutoscalingArgs(max_replicas=3))
