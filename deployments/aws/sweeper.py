"""Finds what a cluster left behind in EC2, and ends it.

    python -m deployments.aws.sweeper CLUSTER [--region REGION] [--grace-s SECONDS] [--yes]

Left behind are workers of a cluster that has no head, instances that the head never tagged as its
nodes, and volumes and network interfaces that nothing uses. All are found by the tag
``ray-cluster-name``. Asks EC2 alone, not Ray: it also works when the cluster is gone.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from ray.autoscaler.tags import TAG_RAY_CLUSTER_NAME

from deployments.aws.aws_clients import aws_clients, aws_errors, error_code
from deployments.aws.cluster_card import ClusterName
from deployments.aws.errors import AwsRefused, ClusterError
from deployments.aws.leftovers import (
    Kind,
    Leftover,
    left_instances,
    left_interfaces,
    left_volumes,
)

GRACE_S = 1800.0
"""A head that ends is replaced within minutes, and finds its workers."""
SECOND_LOOK_S = 30.0
"""Network interfaces are made and attached within seconds."""
_NOT_ENDED = ["pending", "running", "stopping", "stopped"]


def find_leftovers(
    ec2: Any, cluster: str, now: datetime, grace_s: float, sleep: Callable[[float], None]
) -> list[Leftover]:
    """Looks twice at unused network interfaces. Raises `AwsRefused`."""
    of_cluster = {"Name": f"tag:{TAG_RAY_CLUSTER_NAME}", "Values": [cluster]}
    unused = [of_cluster, {"Name": "status", "Values": ["available"]}]
    living = [of_cluster, {"Name": "instance-state-name", "Values": _NOT_ENDED}]
    with aws_errors(f"look for what cluster {cluster} left behind"):
        instances = [
            instance
            for reservation in _all(ec2, "describe_instances", "Reservations", living)
            for instance in reservation["Instances"]
        ]
        volumes = _all(ec2, "describe_volumes", "Volumes", unused)
        interfaces = _all(ec2, "describe_network_interfaces", "NetworkInterfaces", unused)
        unused_before = {interface["NetworkInterfaceId"] for interface in interfaces}
        if interfaces:
            sleep(min(SECOND_LOOK_S, grace_s))
            interfaces = _all(ec2, "describe_network_interfaces", "NetworkInterfaces", unused)
    return [
        *left_instances(instances, now, grace_s),
        *left_volumes(volumes, now, grace_s),
        *left_interfaces(interfaces, unused_before),
    ]


def end_leftover(ec2: Any, left: Leftover) -> None:
    """Nothing to do when it is gone already. Raises `AwsRefused`."""
    from botocore.exceptions import ClientError

    with aws_errors(f"end {left.kind} {left.id}"):
        try:
            match left.kind:
                case Kind.INSTANCE:
                    ec2.terminate_instances(InstanceIds=[left.id])
                case Kind.VOLUME:
                    ec2.delete_volume(VolumeId=left.id)
                case Kind.NETWORK_INTERFACE:
                    ec2.delete_network_interface(NetworkInterfaceId=left.id)
        except ClientError as error:
            if not error_code(error).endswith(".NotFound"):
                raise


def main(
    arguments: Sequence[str] | None = None, sleep: Callable[[float], None] = time.sleep
) -> int:
    """0: nothing is left over, or all of it was ended. 1: something is, or AWS refused."""
    options = _parser().parse_args(arguments)
    try:
        ec2 = aws_clients(options.region).ec2
        now = datetime.now(UTC)
        leftovers = find_leftovers(ec2, options.cluster, now, options.grace_s, sleep)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    for left in leftovers:
        print(f"{left.kind} {left.id}: {left.words}")
    if not leftovers:
        print(f"cluster {options.cluster} left nothing behind")
        return 0
    if not options.yes:
        print(f"{len(leftovers)} left behind; --yes ends them")
        return 1
    num_ended = 0
    for left in leftovers:
        try:
            end_leftover(ec2, left)
            num_ended += 1
        except AwsRefused as error:
            print(error, file=sys.stderr)
    print(f"ended {num_ended} of {len(leftovers)}")
    return 0 if num_ended == len(leftovers) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deployments.aws.sweeper",
        description="Lists what a cluster left behind in EC2, and ends it.",
    )
    parser.add_argument("cluster", metavar="CLUSTER", type=_cluster_name)
    parser.add_argument("--region")
    parser.add_argument(
        "--grace-s", type=_seconds, default=GRACE_S, help="what is younger stays (%(default)s)"
    )
    parser.add_argument("--yes", action="store_true", help="end what is found")
    return parser


def _cluster_name(value: str) -> str:
    """An asterisk would be every cluster's."""
    try:
        return str(TypeAdapter(ClusterName).validate_python(value))
    except ValidationError:
        raise argparse.ArgumentTypeError(
            f"{value!r} is no cluster's name: 3 to 32 lower-case letters, digits and hyphens"
        ) from None


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0.0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is no time: give seconds, 0 or more")
    return seconds


def _all(ec2: Any, call: str, part: str, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pages = ec2.get_paginator(call).paginate(Filters=filters)
    return [one for page in pages for one in page[part]]


if __name__ == "__main__":
    sys.exit(main())
