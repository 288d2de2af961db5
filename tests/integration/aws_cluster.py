"""A cluster as Terraform leaves it, on moto's server: buckets, card, token, head and nodes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from deployments.aws.aws_clients import AwsClients, aws_clients
from deployments.aws.cluster_card import ClusterCard, PoolCard, card_parameter
from deployments.aws.launch_config import Market
from tests.integration.fake_serve import TOKEN

REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class AwsCluster:
    clients: AwsClients
    card: ClusterCard

    def write_card(self, text: str) -> None:
        self.clients.ssm.put_parameter(
            Name=card_parameter(self.card.name), Value=text, Type="String", Overwrite=True
        )

    def keys(self, bucket: str) -> list[str]:
        found = self.clients.s3.list_objects_v2(Bucket=bucket)
        return [entry["Key"] for entry in found.get("Contents", ())]


@contextmanager
def aws_endpoint(patch: pytest.MonkeyPatch) -> Iterator[str]:
    """boto3 in this process sees nothing but moto."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    patch.setenv("AWS_DEFAULT_REGION", REGION)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def make_cluster(name: str, *, token: str = TOKEN) -> AwsCluster:
    """With a head in service and no worker; ``name`` is used once."""
    clients = aws_clients(REGION)
    secret = clients.secrets.create_secret(Name=f"{name}-token", SecretString=token)
    card = ClusterCard(
        format=1,
        name=name,
        region=REGION,
        endpoint="https://llm.example.com",
        head_group=f"{name}-head",
        dashboard_port=8265,
        weights_bucket=f"{name}-weights",
        config_bucket=f"{name}-config",
        ray_token_secret_arn=secret["ARN"],
        events_queue_url="https://sqs.us-east-1.amazonaws.com/123456789012/events",
        pools={
            "l40s": PoolCard(
                instance_types=("g6e.12xlarge",),
                min_nodes=0,
                max_nodes=2,
                num_devices=4,
                markets=(Market.SPOT, Market.ON_DEMAND),
            )
        },
    )
    for bucket in (card.weights_bucket, card.config_bucket):
        clients.s3.create_bucket(Bucket=bucket)
    cluster = AwsCluster(clients, card)
    cluster.write_card(card.model_dump_json())
    _start_head(cluster)
    return cluster


def _start_head(cluster: AwsCluster) -> None:
    clients, card = cluster.clients, cluster.card
    data: dict[str, Any] = {"ImageId": "ami-12c6146b", "InstanceType": "m7i.large"}
    clients.ec2.create_launch_template(LaunchTemplateName=card.head_group, LaunchTemplateData=data)
    tags = {"ray-cluster-name": card.name, "ray-user-node-type": "head"}
    clients.autoscaling.create_auto_scaling_group(
        AutoScalingGroupName=card.head_group,
        LaunchTemplate={"LaunchTemplateName": card.head_group, "Version": "$Latest"},
        MinSize=1,
        MaxSize=1,
        AvailabilityZones=[f"{REGION}a"],
        Tags=[
            {"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()
        ],
    )
