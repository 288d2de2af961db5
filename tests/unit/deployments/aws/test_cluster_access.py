"""The way to the head: what is missing is named."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.aws.aws_clients import AwsClients
from deployments.aws.cluster_access import check_programs, head_instance, tunnel_command
from deployments.aws.errors import ClusterUnknown, TunnelBroken
from tests.unit.deployments.aws.fake_cluster import CARD


def clients(*groups: list[tuple[str, str]]) -> AwsClients:
    answer = {
        "AutoScalingGroups": [
            {"Instances": [{"InstanceId": i, "LifecycleState": state} for i, state in group]}
            for group in groups
        ]
    }
    none: Any = None
    autoscaling = SimpleNamespace(describe_auto_scaling_groups=lambda **_: answer)
    return AwsClients("us-east-1", none, none, none, none, autoscaling)


def test_the_head_is_the_instance_in_service() -> None:
    group = [("i-old", "Terminating"), ("i-new", "InService")]
    assert head_instance(clients(group), CARD) == "i-new"


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], "there is no auto scaling group river-head"),
        ([[("i-new", "Pending")]], "no head is in service in river-head"),
    ],
)
def test_a_head_that_is_not_there_is_told(groups: Any, words: str) -> None:
    with pytest.raises(ClusterUnknown, match=words):
        head_instance(clients(*groups), CARD)


def test_missing_programs_are_named_all_at_once() -> None:
    check_programs(lambda name: f"/usr/bin/{name}")
    with pytest.raises(TunnelBroken, match=r"the AWS CLI .* and the Session Manager"):
        check_programs(lambda _: None)
    with pytest.raises(TunnelBroken, match="install the Session Manager plugin"):
        check_programs(lambda name: name if name == "aws" else None)


def test_the_tunnel_names_instance_region_and_ports() -> None:
    command = tunnel_command("i-1", port=8265, local_port=4000, region="eu-west-1")
    assert command[:7] == [
        "aws",
        "ssm",
        "start-session",
        "--target",
        "i-1",
        "--region",
        "eu-west-1",
    ]
    assert json.loads(command[-1]) == {"portNumber": ["8265"], "localPortNumber": ["4000"]}
