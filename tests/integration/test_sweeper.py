"""What a cluster left behind is listed and ended, on a stand-in for EC2 in this process."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from moto import mock_aws

from deployments.aws.sweeper import SECOND_LOOK_S, main

pytestmark = pytest.mark.integration

REGION = "us-east-1"
CLUSTER = "river"


@dataclass
class Cloud:
    ec2: Any

    def instance(self, cluster: str, kind: str | None) -> str:
        image = self.ec2.describe_images()["Images"][0]["ImageId"]
        tags = {"ray-cluster-name": cluster} | ({"ray-node-type": kind} if kind else {})
        made = self.ec2.run_instances(
            ImageId=image,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": _tags(tags)}],
        )
        return str(made["Instances"][0]["InstanceId"])

    def volume(self, cluster: str) -> str:
        made = self.ec2.create_volume(AvailabilityZone="us-east-1a", Size=8)
        self._tag(made["VolumeId"], cluster)
        return str(made["VolumeId"])

    def interface(self, cluster: str) -> str:
        subnet = self.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        made = self.ec2.create_network_interface(SubnetId=subnet)["NetworkInterface"]
        self._tag(made["NetworkInterfaceId"], cluster)
        return str(made["NetworkInterfaceId"])

    def _tag(self, resource: str, cluster: str) -> None:
        self.ec2.create_tags(Resources=[resource], Tags=_tags({"ray-cluster-name": cluster}))

    @property
    def living(self) -> set[str]:
        """Instances that run, volumes and interfaces that are free."""
        free = [{"Name": "status", "Values": ["available"]}]
        running = [{"Name": "instance-state-name", "Values": ["running"]}]
        instances = self.ec2.describe_instances(Filters=running)["Reservations"]
        volumes = self.ec2.describe_volumes(Filters=free)["Volumes"]
        interfaces = self.ec2.describe_network_interfaces(Filters=free)["NetworkInterfaces"]
        return (
            {one["InstanceId"] for part in instances for one in part["Instances"]}
            | {volume["VolumeId"] for volume in volumes}
            | {interface["NetworkInterfaceId"] for interface in interfaces}
        )


def _tags(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield Cloud(boto3.client("ec2", region_name=REGION))


def sweep(*options: str) -> int:
    return main([CLUSTER, "--grace-s", "0", *options])


def test_what_is_left_over_is_listed_and_ended_only_when_told_to(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    left = {
        cloud.instance(CLUSTER, "worker"),
        cloud.instance(CLUSTER, None),
        cloud.volume(CLUSTER),
        cloud.interface(CLUSTER),
    }
    others = {
        cloud.instance("other", None),
        cloud.volume("other"),
        cloud.interface("other"),
    }
    assert sweep() == 1
    told = capsys.readouterr().out
    assert all(one in told for one in left)
    assert not any(one in told for one in others)
    assert told.endswith("4 left behind; --yes ends them\n")
    assert left | others <= cloud.living
    assert sweep("--yes") == 0
    assert capsys.readouterr().out.endswith("ended 4 of 4\n")
    assert cloud.living & (left | others) == others
    assert sweep("--yes") == 0
    assert capsys.readouterr().out == "cluster river left nothing behind\n"


def test_a_cluster_that_runs_keeps_its_head_and_workers(cloud: Cloud) -> None:
    nodes = {cloud.instance(CLUSTER, "head"), cloud.instance(CLUSTER, "worker")}
    stray = cloud.instance(CLUSTER, None)
    assert sweep("--yes") == 0
    assert nodes <= cloud.living
    assert stray not in cloud.living


def test_what_is_young_stays(cloud: Cloud) -> None:
    young = {cloud.instance(CLUSTER, None), cloud.volume(CLUSTER)}
    assert main([CLUSTER, "--grace-s", "3600", "--yes"]) == 0
    assert young <= cloud.living


def test_an_interface_that_is_used_at_the_second_look_stays(cloud: Cloud) -> None:
    worker, interface = cloud.instance(CLUSTER, "head"), cloud.interface(CLUSTER)
    slept_s = []

    def attach_meanwhile(seconds: float) -> None:
        slept_s.append(seconds)
        cloud.ec2.attach_network_interface(
            NetworkInterfaceId=interface, InstanceId=worker, DeviceIndex=1
        )

    assert main([CLUSTER, "--yes"], attach_meanwhile) == 0
    assert slept_s == [SECOND_LOOK_S]
    found = cloud.ec2.describe_network_interfaces(NetworkInterfaceIds=[interface])
    assert found["NetworkInterfaces"][0]["Status"] == "in-use"


def test_what_can_not_be_ended_is_told_and_the_rest_is_ended(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, volume = cloud.instance(CLUSTER, None), cloud.volume(CLUSTER)
    cloud.ec2.modify_instance_attribute(InstanceId=kept, DisableApiTermination={"Value": True})
    assert sweep("--yes") == 1
    told = capsys.readouterr()
    assert f"cannot end instance {kept}: " in told.err
    assert told.out.endswith("ended 1 of 2\n")
    assert kept in cloud.living
    assert volume not in cloud.living


def test_another_region_has_nothing_of_it(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    left = cloud.instance(CLUSTER, None)
    assert sweep("--region", "eu-west-1", "--yes") == 0
    assert capsys.readouterr().out == "cluster river left nothing behind\n"
    assert left in cloud.living


@pytest.mark.parametrize("name", ["*", "river*", "", "River"])
def test_a_name_that_is_none_ends_nothing(
    cloud: Cloud, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left = cloud.instance(CLUSTER, None)
    with pytest.raises(SystemExit) as ended:
        main([name, "--grace-s", "0", "--yes"])
    assert ended.value.code == 2
    assert "is no cluster's name" in capsys.readouterr().err
    assert left in cloud.living


def test_without_credentials_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    assert main([CLUSTER, "--region", REGION]) == 1
    assert "there are no AWS credentials" in capsys.readouterr().err


def test_without_a_region_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    assert main([CLUSTER]) == 1
    assert "no region is chosen: give --region" in capsys.readouterr().err
