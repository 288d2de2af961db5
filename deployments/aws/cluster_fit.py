"""Whether a `serve run` file fits a cluster: accelerators of its pools, and the way that clients
come in. Pure.
"""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from deployments.aws.cluster_card import ClusterCard, PoolCard
from deployments.faults import Fault
from deployments.serve_file import ModelSection, ServeFile

CLIENT_PORT = 8000
"""Of the head, to which the load balancer sends."""
ANY_HOST = "0.0.0.0"  # noqa: S104  written into a file for nodes in private subnets


def check_fit(file: ServeFile, card: ClusterCard) -> Iterator[Fault]:
    """What this cluster can't serve."""
    if not file.gateways:
        yield Fault("has no gateway, so nothing would answer: add one")
    if file.http_port != CLIENT_PORT:
        message = (
            f"must be {CLIENT_PORT}, not {file.http_port}: there the load balancer sends clients"
        )
        yield Fault(message, ("http_options", "port"))
    pools = [pool for pool in card.pools.values() if pool.max_nodes > 0]
    for model in file.models:
        yield from _check_devices(model, pools, card)


def _check_devices(
    model: ModelSection, pools: list[PoolCard], card: ClusterCard
) -> Iterator[Fault]:
    """Of one model as if it had the cluster for itself; a replica lies on one node."""
    needed = model.args.reserved_gpus
    if needed == 0:
        return
    largest = max((pool.num_devices for pool in pools), default=0)
    path = (*model.path, "args")
    if needed > largest:
        described = ", ".join(f"{name} {pool.num_devices}" for name, pool in card.pools.items())
        yield Fault(
            f"a replica needs {needed:g} devices of one node, {card.name} has nodes with at most "
            f"{largest} ({described}): lower engine.tensor_parallel_size, or add a pool",
            path,
        )
        return
    room = int(sum(pool.max_nodes * (pool.num_devices // needed) for pool in pools))
    if model.args.autoscaling is None and needed >= 1 and model.num_replicas > room:
        yield Fault(
            f"{model.num_replicas} replicas of {needed:g} devices don't fit, {card.name} has room "
            f"for {room}: lower num_replicas, or raise max_nodes of a pool",
            path,
        )


def cluster_document(text: str) -> tuple[dict[str, Any], list[str]]:
    """What is deployed in place of the file ``text``, which has no faults; what was changed.

    Serve must listen on the node's addresses, since the load balancer is not on the node: a host of
    the file is for this machine, and is replaced. Raises ``ValueError`` for what JSON, in which
    Serve takes it, doesn't have.
    """
    try:
        document: dict[str, Any] = json.loads(json.dumps(yaml.safe_load(text), allow_nan=False))
    except TypeError as error:
        raise ValueError(str(error)) from error
    options = document.setdefault("http_options", {})
    if options.get("host") == ANY_HOST:
        return document, []
    was = options.get("host", "127.0.0.1")
    options["host"] = ANY_HOST
    return document, [f"http_options.host: {ANY_HOST} in place of {was}"]


def render(document: dict[str, Any]) -> bytes:
    """The file that is stored: the same for the same document."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100).encode()
