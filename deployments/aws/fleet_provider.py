"""Ray's autoscaler asks this for workers: EC2 instances by CreateFleet, from the first market of a
pool that has any.

Named in the autoscaler's file as ``type: external``. All it knows of a cluster's nodes are tags of
instances: a head that starts again finds what the one before it launched. Must not know what runs
on nodes. Called from several threads.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError
from pydantic import ValidationError
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import TAG_RAY_CLUSTER_NAME, TAG_RAY_USER_NODE_TYPE

from deployments.aws.aws_clients import aws_errors, error_code
from deployments.aws.capacity_memory import CapacityMemory
from deployments.aws.errors import AwsRefused
from deployments.aws.fleet_launch import FleetLaunch
from deployments.aws.launch_config import LaunchConfig

logger = logging.getLogger("headwater.fleet_provider")

UNSEEN_S = 120.0
"""EC2 lists an instance only some time after it was launched."""
_TERMINATE_BATCH = 100
_ALIVE = ("pending", "running")


class FleetProvider(NodeProvider):
    """Of one cluster. ``provider_config`` has a region. Ray gives no more than these two;
    ``clock`` gives seconds and never goes back."""

    def __init__(
        self,
        provider_config: dict[str, Any],
        cluster_name: str,
        ec2: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(provider_config, cluster_name)
        self._ec2 = _client(provider_config["region"]) if ec2 is None else ec2
        self._clock = clock
        self._launch = FleetLaunch(self._ec2, CapacityMemory(), clock)
        self._lock = threading.Lock()
        self._nodes: dict[str, dict[str, Any]] = {}
        self._launched: dict[str, tuple[float, dict[str, Any]]] = {}
        self._ended: dict[str, float] = {}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Raises `AwsRefused`."""
        filters = [
            {"Name": "instance-state-name", "Values": list(_ALIVE)},
            {"Name": f"tag:{TAG_RAY_CLUSTER_NAME}", "Values": [self.cluster_name]},
        ]
        with aws_errors(f"list the nodes of cluster {self.cluster_name}"):
            pages = self._ec2.get_paginator("describe_instances").paginate(Filters=filters)
            listed = {
                instance["InstanceId"]: instance
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
            }
        now_s = self._clock()
        with self._lock:
            self._launched = {
                node_id: (at_s, instance)
                for node_id, (at_s, instance) in self._launched.items()
                if node_id not in listed and now_s < at_s + UNSEEN_S
            }
            self._ended = {
                node_id: at_s for node_id, at_s in self._ended.items() if now_s < at_s + UNSEEN_S
            }
            unseen = {node_id: instance for node_id, (_, instance) in self._launched.items()}
            self._nodes = {
                node_id: instance
                for node_id, instance in (unseen | listed).items()
                if node_id not in self._ended
            }
            return [
                node_id
                for node_id, instance in self._nodes.items()
                if tag_filters.items() <= _tags(instance).items()
            ]

    def is_running(self, node_id: str) -> bool:
        return bool(self._node(node_id).get("State", {}).get("Name") == "running")

    def is_terminated(self, node_id: str) -> bool:
        with self._lock:
            return node_id not in self._nodes

    def node_tags(self, node_id: str) -> dict[str, str]:
        return _tags(self._node(node_id))

    def internal_ip(self, node_id: str) -> str | None:
        return self._node(node_id).get("PrivateIpAddress")

    def external_ip(self, node_id: str) -> str | None:
        return self._node(node_id).get("PublicIpAddress")

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        """Raises `AwsRefused`."""
        with aws_errors(f"tag node {node_id}"):
            self._ec2.create_tags(Resources=[node_id], Tags=_aws_tags(tags))
        with self._lock:
            node = self._nodes.get(node_id)
            if node is not None:
                node["Tags"] = _aws_tags(_tags(node) | tags)

    def create_node(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any]:
        """New nodes by their ids; stopped instances are never used again. Raises
        ``NodeLaunchException`` when there are fewer than ``count``: those that came stay."""
        pool = tags.get(TAG_RAY_USER_NODE_TYPE, "?")
        try:
            config = LaunchConfig.model_validate(node_config)
        except ValidationError as error:
            raise NodeLaunchException(
                "InvalidNodeConfig",
                f"pool {pool}: its node_config can't be read, apply Terraform again: {error}",
                None,
            ) from error
        all_tags = {"Name": f"ray-{self.cluster_name}-{pool}"} | tags
        all_tags[TAG_RAY_CLUSTER_NAME] = self.cluster_name
        report = self._launch.run(pool, config.offers, count, all_tags, _token)
        nodes = {
            node_id: {
                "InstanceId": node_id,
                "State": {"Name": "pending"},
                "Tags": _aws_tags(all_tags),
            }
            for node_id in report.launched
        }
        now_s = self._clock()
        with self._lock:
            self._nodes |= nodes
            self._launched |= {node_id: (now_s, node) for node_id, node in nodes.items()}
        for fault in report.fault_words:
            logger.warning("pool %s: %s", pool, fault)
        shortfall = report.shortfall(self._clock())
        if shortfall is not None:
            # Ray lists nodes before it looks at errors, and takes those that came as its own.
            raise NodeLaunchException(shortfall.category, shortfall.words, None)
        return nodes

    def terminate_node(self, node_id: str) -> dict[str, Any]:
        return self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: list[str]) -> dict[str, Any]:
        """Those that don't exist (any more) are ended. Raises `AwsRefused`, after it has tried
        all."""
        refused: AwsRefused | None = None
        batches = [
            node_ids[start : start + _TERMINATE_BATCH]
            for start in range(0, len(node_ids), _TERMINATE_BATCH)
        ]
        while batches:
            batch = batches.pop()
            try:
                all_known = self._terminate(batch)
            except AwsRefused as error:
                refused = error
                continue
            if not all_known and len(batch) > 1:
                half = len(batch) // 2
                batches += [batch[:half], batch[half:]]
            else:
                self._forget(batch)
        if refused is not None:
            raise refused
        return {}

    def _terminate(self, node_ids: list[str]) -> bool:
        """False: one is unknown, and EC2 ended none."""
        with aws_errors(f"end {len(node_ids)} nodes of cluster {self.cluster_name}"):
            try:
                self._ec2.terminate_instances(InstanceIds=node_ids)
            except ClientError as error:
                if not error_code(error).startswith("InvalidInstanceID"):
                    raise
                return False
        return True

    def _forget(self, node_ids: list[str]) -> None:
        now_s = self._clock()
        with self._lock:
            for node_id in node_ids:
                self._ended[node_id] = now_s
                self._launched.pop(node_id, None)
                self._nodes.pop(node_id, None)

    def _node(self, node_id: str) -> Mapping[str, Any]:
        with self._lock:
            return self._nodes.get(node_id, {})


def _client(region: str) -> Any:
    import boto3
    from botocore.config import Config

    retries = {"mode": "standard", "max_attempts": 5}
    return boto3.client("ec2", region_name=region, config=Config(retries=retries))


def _token() -> str:
    """A new one for each request: boto3 repeats a request with its own."""
    return uuid.uuid4().hex


def _tags(instance: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}


def _aws_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
