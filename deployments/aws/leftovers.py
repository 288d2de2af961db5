"""Which of a cluster's things in EC2 nothing uses any more.

Pure: decides over what EC2 listed. All of it carries the cluster's tag.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND

_RUNNING = ("pending", "running")


class Kind(StrEnum):
    INSTANCE = "instance"
    VOLUME = "volume"
    NETWORK_INTERFACE = "network interface"


@dataclass(frozen=True, slots=True)
class Leftover:
    kind: Kind
    id: str
    words: str
    """What costs money of it, and why it is left over."""


def left_instances(
    instances: Sequence[Mapping[str, Any]], now: datetime, grace_s: float
) -> list[Leftover]:
    """Of all that aren't ended. A head is never left over, and its workers only without it: Ray
    ends those itself."""
    kinds = [_tags(instance).get(TAG_RAY_NODE_KIND) for instance in instances]
    has_head = any(
        kind == NODE_KIND_HEAD and instance["State"]["Name"] in _RUNNING
        for kind, instance in zip(kinds, instances, strict=True)
    )
    found = []
    for instance, kind in zip(instances, kinds, strict=True):
        age_s = (now - instance["LaunchTime"]).total_seconds()
        if kind == NODE_KIND_HEAD or age_s < grace_s or (has_head and kind is not None):
            continue
        why = "Ray never knew it" if kind is None else "its cluster has no head"
        market = instance.get("InstanceLifecycle", "on-demand")
        facts = f"{instance['InstanceType']}, {market}, {instance['State']['Name']}"
        words = f"{facts}, launched {age_s / 3600:.1f} h ago: {why}"
        found.append(Leftover(Kind.INSTANCE, instance["InstanceId"], words))
    return found


def left_volumes(
    volumes: Sequence[Mapping[str, Any]], now: datetime, grace_s: float
) -> list[Leftover]:
    return [
        Leftover(Kind.VOLUME, volume["VolumeId"], f"{volume['Size']} GiB, not attached")
        for volume in volumes
        if volume["State"] == "available"
        and (now - volume["CreateTime"]).total_seconds() >= grace_s
    ]


def left_interfaces(
    interfaces: Sequence[Mapping[str, Any]], unused_before: Collection[str]
) -> list[Leftover]:
    """EC2 doesn't tell since when: those that were unused at an earlier look too."""
    return [
        Leftover(Kind.NETWORK_INTERFACE, interface["NetworkInterfaceId"], "not attached")
        for interface in interfaces
        if interface["Status"] == "available" and interface["NetworkInterfaceId"] in unused_before
    ]


def _tags(instance: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
