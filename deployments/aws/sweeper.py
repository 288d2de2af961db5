"""Finds what a cluster left behind in EC2, and ends it.

    python -m deployments.aws.sweeper CLUSTER [--region REGION] [--grace-s SECONDS] [--yes]

Left behind are workers of a cluster that has no head, instances that the head never tagged as its
nodes, and volumes and network interfaces that nothing uses. All are found by the tag
``ray-cluster-name``. Asks EC2 alone, not Ray: it also works when the cluster is gone.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_CLUSTER_NAME, TAG_RAY_NODE_KIND

from deployments.aws.aws_clients import aws_clients, aws_errors
from deployments.aws.errors import ClusterError

GRACE_S = 1800.0
"""A head that ends is replaced within minutes, and finds its workers."""
_ALIVE = ["pending", "running", "stopping", "stopped"]


@dataclass(frozen=True, slots=True)
class Leftover:
    kind: str
    """instance, volume or network interface."""
    id: str
    words: str
    """What costs money of it, and why it is left over."""


def find_leftovers(ec2: Any, cluster: str, now: datetime, grace_s: float) -> list[Leftover]:
    """Raises `AwsRefused`."""
    of_cluster = {"Name": f"tag:{TAG_RAY_CLUSTER_NAME}", "Values": [cluster]}
    unused = [of_cluster, {"Name": "status", "Values": ["available"]}]
    with aws_errors(f"look for what cluster {cluster} left behind"):
        instances = [
            instance
            for reservation in _all(
                ec2,
                "describe_instances",
                "Reservations",
                [of_cluster, {"Name": "instance-state-name", "Values": _ALIVE}],
            )
            for instance in reservation["Instances"]
        ]
        volumes = _all(ec2, "describe_volumes", "Volumes", unused)
        cards = _all(ec2, "describe_network_interfaces", "NetworkInterfaces", unused)
    return [
        *left_instances(instances, now, grace_s),
        *(
            Leftover("volume", volume["VolumeId"], f"{volume['Size']} GiB, not attached")
            for volume in volumes
            if (now - volume["CreateTime"]).total_seconds() >= grace_s
        ),
        *(
            Leftover("network interface", card["NetworkInterfaceId"], "not attached")
            for card in cards
        ),
    ]


def left_instances(
    instances: Sequence[Mapping[str, Any]], now: datetime, grace_s: float
) -> list[Leftover]:
    """Of all that live. A head is never left over."""
    kinds = [_tags(instance).get(TAG_RAY_NODE_KIND) for instance in instances]
    has_head = NODE_KIND_HEAD in kinds
    found = []
    for instance, kind in zip(instances, kinds, strict=True):
        age_s = (now - instance["LaunchTime"]).total_seconds()
        if kind == NODE_KIND_HEAD or age_s < grace_s or (has_head and kind is not None):
            continue
        why = "Ray never knew it" if kind is None else "its cluster has no head"
        market = instance.get("InstanceLifecycle", "on-demand")
        facts = f"{instance['InstanceType']}, {market}, {instance['State']['Name']}"
        words = f"{facts}, launched {age_s / 3600:.1f} h ago: {why}"
        found.append(Leftover("instance", instance["InstanceId"], words))
    return found


def end_leftovers(ec2: Any, leftovers: Sequence[Leftover]) -> None:
    """Raises `AwsRefused` at the first that can't be ended."""
    for left in leftovers:
        with aws_errors(f"end {left.kind} {left.id}"):
            if left.kind == "instance":
                ec2.terminate_instances(InstanceIds=[left.id])
            elif left.kind == "volume":
                ec2.delete_volume(VolumeId=left.id)
            else:
                ec2.delete_network_interface(NetworkInterfaceId=left.id)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: nothing is left over, or all of it was ended. 1: something is, or AWS refused."""
    parser = argparse.ArgumentParser(prog="python -m deployments.aws.sweeper")
    parser.add_argument("cluster", metavar="CLUSTER")
    parser.add_argument("--region")
    parser.add_argument("--grace-s", type=float, default=GRACE_S)
    parser.add_argument("--yes", action="store_true", help="end what is found")
    options = parser.parse_args(arguments)
    try:
        ec2 = aws_clients(options.region).ec2
        leftovers = find_leftovers(ec2, options.cluster, datetime.now(UTC), options.grace_s)
        for left in leftovers:
            print(f"{left.kind} {left.id}: {left.words}")
        if not leftovers:
            print(f"cluster {options.cluster} left nothing behind")
            return 0
        if not options.yes:
            print(f"{len(leftovers)} left behind; --yes ends them")
            return 1
        end_leftovers(ec2, leftovers)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"ended {len(leftovers)}")
    return 0


def _all(ec2: Any, call: str, part: str, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pages = ec2.get_paginator(call).paginate(Filters=filters)
    return [one for page in pages for one in page[part]]


def _tags(instance: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}


if __name__ == "__main__":
    sys.exit(main())
