"""The environment dev, applied to an empty account: what stands is what was asked for."""

import dataclasses
import json
import time
import uuid
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError

from deployments.aws.cluster_card import ClusterCard, card_parameter
from deployments.aws.launch_config import LaunchConfig
from tests.terraform.applied_environment import AppliedEnvironment
from tests.terraform.terraform_runner import NO_CHANGES, STATE_BUCKET

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(400)]


def card_of(dev: AppliedEnvironment) -> ClusterCard:
    told = dev.aws.client("ssm").get_parameter(Name=card_parameter(dev.cluster))
    return ClusterCard.model_validate_json(told["Parameter"]["Value"])


def worker_role(dev: AppliedEnvironment) -> str:
    roles = dev.aws.client("iam").list_roles()["Roles"]
    return str(next(role["Arn"] for role in roles if role["RoleName"].endswith("-worker")))


def test_a_second_plan_changes_nothing(dev: AppliedEnvironment) -> None:
    outcome = dev.root.plan(out="second")
    assert outcome.status == NO_CHANGES, outcome.told


def test_the_cluster_tells_of_itself(dev: AppliedEnvironment) -> None:
    card = card_of(dev)
    assert (card.name, card.region) == (dev.cluster, dev.settings["region"])
    pools = dev.settings["pools"]
    assert set(card.pools) == set(pools)
    for name, pool in card.pools.items():
        assert list(pool.instance_types) == pools[name]["instance_types"]
        assert (pool.min_nodes, pool.max_nodes) == (
            pools[name]["min_nodes"],
            pools[name]["max_nodes"],
        )
    s3 = dev.aws.client("s3")
    for bucket in (card.weights_bucket, card.config_bucket):
        s3.head_bucket(Bucket=bucket)
    groups = dev.aws.client("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[card.head_group]
    )["AutoScalingGroups"]
    assert [(group["MinSize"], group["MaxSize"]) for group in groups] == [(1, 1)]


def test_rays_autoscaler_can_launch_what_its_file_names(dev: AppliedEnvironment) -> None:
    bucket = card_of(dev).config_bucket
    stored = dev.aws.client("s3").get_object(Bucket=bucket, Key="cluster/autoscaler.yaml")
    file = yaml.safe_load(stored["Body"].read())
    assert file["cluster_name"] == dev.cluster
    kinds = file["available_node_types"]
    assert set(kinds) == {"head", *dev.settings["pools"]}
    ec2 = dev.aws.client("ec2")
    subnets = {subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"]}
    for name in dev.settings["pools"]:
        for offer in LaunchConfig.model_validate(kinds[name]["node_config"]).offers:
            assert set(offer.subnets.values()) <= subnets
            versions = ec2.describe_launch_template_versions(
                LaunchTemplateId=offer.launch_template.id,
                Versions=[offer.launch_template.version],
            )["LaunchTemplateVersions"]
            assert len(versions) == 1


def test_a_worker_reads_weights_and_writes_deletes_and_ends_nothing(
    dev: AppliedEnvironment,
) -> None:
    bucket = card_of(dev).weights_bucket
    key = "a-model/model.safetensors"
    made = dev.aws.client("s3").put_object(Bucket=bucket, Key=key, Body=b"weights")
    instance = next(
        each["InstanceId"]
        for reservation in dev.aws.client("ec2").describe_instances()["Reservations"]
        for each in reservation["Instances"]
    )
    s3 = dev.aws.client_as(worker_role(dev), "s3")
    ec2 = dev.aws.client_as(worker_role(dev), "ec2")
    with dev.aws.enforced_iam():
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"weights"
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.put_object(Bucket=bucket, Key=key, Body=b"others")
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.delete_object(Bucket=bucket, Key=key)
        with pytest.raises(ClientError, match="AccessDenied"):
            ec2.terminate_instances(InstanceIds=[instance])
    dev.aws.client("s3").delete_object(Bucket=bucket, Key=key, VersionId=made["VersionId"])


def test_while_another_holds_the_state_a_plan_says_who(dev: AppliedEnvironment) -> None:
    lock = {
        "ID": str(uuid.uuid4()),
        "Operation": "OperationTypeApply",
        "Who": "somebody@elsewhere",
        "Version": "1.11.4",
        "Created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "Path": f"{STATE_BUCKET}/dev/terraform.tfstate",
    }
    place = {"Bucket": STATE_BUCKET, "Key": "dev/terraform.tfstate.tflock"}
    s3 = dev.aws.client("s3")
    s3.put_object(**place, Body=json.dumps(lock).encode())
    try:
        outcome = dev.root.plan(out="locked")
    finally:
        s3.delete_object(**place)
    assert outcome.status == 1
    assert "Error acquiring the state lock" in outcome.told
    assert "somebody@elsewhere" in outcome.told


def test_credentials_that_are_none_are_called_so(dev: AppliedEnvironment) -> None:
    stranger = {"AWS_ACCESS_KEY_ID": "AKIAEXPIRED000000000", "AWS_SESSION_TOKEN": "expired"}
    root = dataclasses.replace(dev.root, environment={**dev.root.environment, **stranger})
    with dev.aws.enforced_iam():
        outcome = root.plan(out="expired")
    assert outcome.status == 1
    assert "validating provider credentials" in outcome.told


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"region": "us-west-9"}, "us-west-9"),
        ({"region": "Virginia"}, "region"),
        ({"zones": ["us-east-1a"]}, "zones"),
        ({"name": "Big_River"}, "name"),
        ({"cidr": "10.40.0.0/33"}, "cidr"),
    ],
)
def test_a_wrong_value_is_named_before_anything_is_made(
    dev: AppliedEnvironment, variables: dict[str, object], told: str
) -> None:
    arguments = [
        f"-var={name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in variables.items()
    ]
    outcome = dev.root.plan("-refresh=false", *arguments, out="wrong")
    assert outcome.status == 1
    assert told in outcome.told


def test_an_unknown_market_of_a_pool_is_named(dev: AppliedEnvironment) -> None:
    pools = json.loads(json.dumps(dev.settings["pools"]))
    next(iter(pools.values()))["markets"] = [{"market": "spto"}]
    outcome = dev.root.plan("-refresh=false", f"-var=pools={json.dumps(pools)}", out="wrong")
    assert outcome.status == 1
    assert "market" in outcome.told


def test_a_misspelt_variable_is_named(dev: AppliedEnvironment) -> None:
    outcome = dev.root.plan("-refresh=false", "-var=regoin=us-east-1", out="wrong")
    assert outcome.status == 1
    assert "regoin" in outcome.told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"alowed_cidrs": ["10.0.0.0/8"]}, "alowed_cidrs"),
        ({"pools": {"l40s": {"max_node": 3}}}, "pools.l40s.max_node"),
        ({"pools": {"l40s": {"markets": [{"makret": "spot"}]}}}, "pools.l40s.markets.makret"),
    ],
)
def test_a_misspelt_key_of_the_settings_is_named(
    dev: AppliedEnvironment, change: dict[str, Any], told: str
) -> None:
    path = dev.root.folder / "cluster.auto.tfvars.json"
    before = path.read_text(encoding="utf-8")
    settings = json.loads(before)
    for name, value in change.get("pools", {}).items():
        settings["pools"][name] |= value
    settings |= {name: value for name, value in change.items() if name != "pools"}
    path.write_text(json.dumps(settings), encoding="utf-8")
    try:
        # What holds over it here, as a pool with such an offer isn't one.
        pools = f"-var=pools={json.dumps(dev.settings['pools'])}"
        outcome = dev.root.plan("-refresh=false", pools, out="wrong")
    finally:
        path.write_text(before, encoding="utf-8")
    assert outcome.status == 1
    assert told in outcome.told
