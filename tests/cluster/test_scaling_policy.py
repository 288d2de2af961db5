"""The policy in Serve's own controller: it follows plans that are published by hand, and neither a
missing holder nor wrong arguments end the controller's work."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import DeploymentStatus

from autoscaler.plan import Cause, ModelPlan, Plan
from deployments.plan_holder import ensure_plan_holder
from deployments.plan_messages import ServeReport

POLICY = "deployments.scaling_policy:ScalingPolicy"
APPLICATION = "m"
DEPLOYMENT = "Engine"
HOLD_S = 12.0
"""Longer than a plan is believed."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    # Ray leaves log files open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Engine:
    """Does nothing, quickly."""

    async def __call__(self) -> None: ...


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="hw-", dir="/tmp")  # Ray's Unix sockets need a short path
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("RAY_TMPDIR", "TMPDIR"):  # also where Ray notes the cluster's address
            patch.setenv(variable, folder)
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=100 * 1024 * 1024,
            _node_ip_address="127.0.0.1",
        )
        try:
            serve.start(proxy_location="Disabled")
            yield
            serve.shutdown()
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def deploy(**policy_kwargs: Any) -> None:
    deployment = serve.deployment(
        name=DEPLOYMENT,
        autoscaling_config=AutoscalingConfig(
            min_replicas=0,
            max_replicas=4,
            upscale_delay_s=0,
            downscale_delay_s=0,
            downscale_to_zero_delay_s=0,
            policy=AutoscalingPolicy(policy_function=POLICY, policy_kwargs=policy_kwargs),
        ),
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_wait_loop_s=0.1,
    )(Engine)
    serve.run(deployment.bind(), name=APPLICATION, route_prefix=None)


def publish(number: int) -> dict[str, ServeReport]:
    model = ModelPlan(APPLICATION, number, 0, 0, 0, {}, None, (Cause.FORECAST,), "")
    plan = msgspec.msgpack.encode(Plan(0.0, 0.0, 1, 1, (model,)))
    answer = ray.get(ensure_plan_holder().publish.remote(plan), timeout=10)
    return msgspec.msgpack.decode(answer, type=dict[str, ServeReport])


def num_running() -> int | None:
    """None while there are others, or Serve says that something is wrong."""
    status = serve.status().applications[APPLICATION].deployments[DEPLOYMENT]
    states = {state: number for state, number in status.replica_states.items() if number}
    if status.status is not DeploymentStatus.HEALTHY or not states.keys() <= {"RUNNING"}:
        return None
    return states.get("RUNNING", 0)  # type: ignore[no-any-return]


def follow(number: int) -> ServeReport:
    """Publish like the autoscaler until Serve has so many; what Serve said last."""
    deadline_s = time.monotonic() + 20
    while True:
        said = publish(number)
        if num_running() == number and APPLICATION in said:
            return said[APPLICATION]
        assert time.monotonic() < deadline_s
        time.sleep(0.3)


def test_serve_has_as_many_replicas_as_the_plan_from_zero_and_back(cluster: None) -> None:
    deploy(bundle={"CPU": 0.5})
    assert num_running() == 0
    for number in (2, 4, 1, 0):
        report = follow(number)
    assert (report.min_replicas, report.max_replicas) == (0, 4)
    assert report.bundle == {"CPU": 0.5}


def test_without_plan_and_holder_the_size_stays(cluster: None) -> None:
    deploy()
    follow(2)
    ray.kill(ensure_plan_holder())
    deadline_s = time.monotonic() + HOLD_S
    while time.monotonic() < deadline_s:
        assert num_running() == 2
        time.sleep(0.5)
    follow(1)


@pytest.mark.parametrize("policy_kwargs", [{"bundle": 7}, {"model": "m", "bundle": [{}]}], ids=str)
def test_wrong_arguments_leave_serve_well_and_the_plan_followed(
    policy_kwargs: dict[str, Any], cluster: None
) -> None:
    deploy(**policy_kwargs)
    assert follow(2).bundle == {}
    follow(1)
