"""The processes of a local Ray, found below the one that started it."""

import time
from collections.abc import Callable

import psutil

GATEWAY = "ServeReplica:gateway:Gateway"


def engine_of(model: str) -> str:
    return f"ServeReplica:{model}:EngineReplica"


def family_of(pid: int) -> list[psutil.Process]:
    """The process and everything below it."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def replicas(pid: int, name: str) -> list[psutil.Process]:
    """Live Serve replicas, or other programs, of that name below `pid`, oldest first."""
    found = [process for process in family_of(pid) if _has_title(process, name)]
    return sorted(found, key=lambda process: process.create_time())


def ranks_of(replica: psutil.Process) -> list[psutil.Process]:
    """The children of an engine replica, by rank."""
    return sorted(replica.children(), key=lambda child: child.create_time())


def step_loop_of(replica: psutil.Process) -> psutil.Process:
    """The one child of an engine replica with one rank."""
    (child,) = ranks_of(replica)
    return child


def listening_ports(process: psutil.Process) -> set[int]:
    connections = process.net_connections("tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"within {timeout_s:g} s: {what}"
        time.sleep(0.1)


def _has_title(process: psutil.Process, name: str) -> bool:
    try:
        return any(name in part for part in process.cmdline())
    except psutil.Error:
        return False
