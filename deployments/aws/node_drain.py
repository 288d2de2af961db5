"""Tells Ray that a node is about to go: nothing new starts there, Serve moves its replicas away.

    python -m deployments.aws.node_drain --instance i-0123 --left-s 110 --message "spot: terminate"

A process of its own, so that the agent that calls it holds no Ray and outlives whatever hangs here.
"""

import argparse
import sys
import time

import ray
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

from deployments.environment import ray_address

_ASK_TIMEOUT_S = 10


class NodeUnknown(Exception):
    """Ray has no live node on that instance."""


class DrainRefused(Exception):
    """Ray doesn't drain the node."""


def drain(instance_id: str, *, left_s: float, message: str, address: str) -> str:
    """Drain the node on that instance, which ends in ``left_s`` seconds; its id.

    A second time is no error. Raises `NodeUnknown`, `DrainRefused`, and
    Ray's own errors where its GCS at ``address`` can't be reached.
    """
    status = get_cluster_status(address, timeout=_ASK_TIMEOUT_S)
    nodes = {node.instance_id: node.node_id for node in (*status.active_nodes, *status.idle_nodes)}
    if instance_id not in nodes:
        raise NodeUnknown(f"Ray at {address} has no live node on {instance_id}")
    deadline_ms = int((time.time() + left_s) * 1000)
    is_accepted, reason = GcsClient(address=address).drain_node(
        nodes[instance_id],
        DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        message,
        deadline_ms,
    )
    if not is_accepted:
        raise DrainRefused(f"Ray doesn't drain the node on {instance_id}: {reason}")
    return str(nodes[instance_id])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deployments.aws.node_drain")
    parser.add_argument("--instance", required=True)
    parser.add_argument("--left-s", type=float, required=True)
    parser.add_argument("--message", required=True)
    options = parser.parse_args(arguments)
    address = canonicalize_bootstrap_address_or_die(ray_address())
    try:
        node_id = drain(
            options.instance, left_s=options.left_s, message=options.message, address=address
        )
    except (NodeUnknown, DrainRefused, ray.exceptions.RayError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"Ray node {node_id} is draining\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
