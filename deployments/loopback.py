"""Keeps the one port of a Serve replica that no option reaches on loopback.

Every replica opens a gRPC server for calls from other deployments on all interfaces (`[::]`), even
where nothing calls it: gateways and engines speak over their own channel. On a node whose address
is loopback the port has no business elsewhere. Ray 2.60 has no setting for it, so this replaces the
function that binds it, in the replica's process and before it is called. Private names of Ray stay
in this file; where they have changed the port stays as Ray binds it.
"""

import ipaddress
import logging
from typing import Any

import ray

logger = logging.getLogger(__name__)


def bind_replica_to_loopback() -> None:
    """Call from a replica's constructor; does nothing unless the node's address is loopback."""
    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        return
    from ray.serve._private import replica

    bind = getattr(replica, "add_port_to_grpc_server", None)
    if bind is None:
        logger.warning("this Ray binds the replica's gRPC port in another way: left as it is")
        return

    def bind_to_loopback(server: Any, address: str) -> int:
        port: int = bind(server, address.replace("[::]", "127.0.0.1"))
        return port

    replica.add_port_to_grpc_server = bind_to_loopback
