"""`headwater models warm` on a cluster: finds its models, nodes and node caches.

Must not know how weights are placed, nor what is shown of them.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any

import ray
from ray._private.services import resolve_ip_for_localhost

from cache_tiers.rung import Rung
from deployments.config import ModelArgs
from deployments.fitting_nodes import FittingNode, NodeCaches, bundle_of, fitting_nodes
from deployments.node_cache import NAMESPACE, ensure, find_actor
from deployments.warm_model import WarmError, deployed_model, models_of_file
from deployments.warm_report import WarmBars
from deployments.weight_warming import OnProgress, Warmed, Warming

PROBE_TIMEOUT_S = 5.0


def warm_models(target: str, num_nodes: int | None, rung: Rung, address: str) -> list[Warmed]:
    """``target``: a deployed model, or a .yaml; ``num_nodes``: on all where a replica fits if None;
    COLD: out of memory. This process is connected to the cluster afterwards. Raises `WarmError`.
    """
    is_file = target.endswith((".yaml", ".yml"))
    models = models_of_file(Path(target), rung) if is_file else []
    _connect(address)
    models = models or [deployed_model(target, rung)]
    living = ray.nodes()
    placed = [(args, fitting_nodes(living, args)) for args in models]
    if rung is not Rung.COLD:
        for args, nodes in placed:
            _check(args, len(nodes), num_nodes or 1)
    with WarmBars() as bars:
        return asyncio.run(_carry_out(placed, num_nodes, rung, bars.show))


def _connect(address: str) -> None:
    where = "on this machine" if address == "auto" else f"at {address}"
    try:
        _probe(address)
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WarmError(
            f"no Ray cluster can be reached {where} ({reason}): run this on one of its nodes, or "
            "name it by --address HOST:PORT"
        ) from None


def _probe(address: str) -> None:
    """Ray tries for minutes where nobody listens. Raises `OSError` or `ValueError`."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("it is not HOST:PORT")
    with socket.create_connection((resolve_ip_for_localhost(host), int(port)), PROBE_TIMEOUT_S):
        pass


def _check(args: ModelArgs, num_fitting: int, num_nodes: int) -> None:
    if num_fitting < num_nodes:
        bundle = bundle_of(args).items()
        needed = ", ".join(f"{count:g} {name}" for name, count in bundle if count) or "nothing"
        raise WarmError(
            f"{args.name}: {num_fitting} nodes have room for a replica ({needed}), not "
            f"{num_nodes}: add nodes, or lower --nodes"
        )


async def _carry_out(
    placed: list[tuple[ModelArgs, list[FittingNode]]],
    num_nodes: int | None,
    rung: Rung,
    on_progress: OnProgress,
) -> list[Warmed]:
    """One model after the other: they share the nodes' links."""
    warmed: list[Warmed] = []
    for args, nodes in placed:
        assert args.node_cache is not None
        caches = NodeCaches(args.node_cache, _find, ensure)
        warming = Warming(args, nodes, caches, on_progress)
        num = num_nodes or len(nodes)
        warmed += await (warming.cool(num) if rung is Rung.COLD else warming.warm(num, rung))
    return warmed


async def _find(node_id: str) -> Any:
    return await asyncio.to_thread(find_actor, node_id)
