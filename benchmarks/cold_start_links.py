"""Hosts behind links of a given bandwidth, made of network namespaces: one for each host, and one
for the switch between them.

Needs root. Must not know what runs on the hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_NAME = re.compile(r"hw(\d+)-(?:switch|\d+)")
_TIMEOUT_S = 20.0
_BURST_BYTES = 256 * 1024
_MAX_DELAY_MS = 50


@dataclass(frozen=True, slots=True)
class LinkedHost:
    """One namespace."""

    name: str
    address: str

    @property
    def run_by(self) -> list[str]:
        """What runs a command there, put before it."""
        return ["ip", "netns", "exec", self.name]


@contextmanager
def linked_hosts(num: int, bits_per_s: int) -> Iterator[list[LinkedHost]]:
    """Each sends and receives at most so fast. Raises ``OSError`` where that can't be made; what
    earlier processes left, that were killed, goes, too.
    """
    _remove(_left_behind())
    prefix = f"hw{os.getpid()}"
    switch = f"{prefix}-switch"
    hosts = [LinkedHost(f"{prefix}-{index}", f"10.213.0.{index + 1}") for index in range(num)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for index, host in enumerate(hosts):
            _connect(host, switch, f"port{index}", bits_per_s)
        yield hosts
    finally:
        _remove([switch, *(host.name for host in hosts)])


def why_no_links() -> str | None:
    """Why this process can't make links; None: it can."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 (ip, tc) isn't installed"
    try:
        with linked_hosts(1, 1_000_000):
            return None
    except OSError as error:
        return str(error)


def _connect(host: LinkedHost, switch: str, port: str, bits_per_s: int) -> None:
    _ip("netns", "add", host.name)
    _ip("-n", host.name, "link", "set", "lo", "up")
    ends = ("eth0", "netns", host.name, "type", "veth", "peer", "name", port, "netns", switch)
    _ip("link", "add", *ends)
    _ip("-n", switch, "link", "set", port, "master", "bridge")
    _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
    for namespace, device in ((host.name, "eth0"), (switch, port)):
        _ip("-n", namespace, "link", "set", device, "up")
        shape = ("rate", f"{bits_per_s}bit", "burst", str(_BURST_BYTES))
        latency = ("latency", f"{_MAX_DELAY_MS}ms")
        _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *shape, *latency)


def _left_behind() -> list[str]:
    names = (line.split()[0] for line in _ip("netns", "list").splitlines() if line)
    matches = (_NAME.fullmatch(name) for name in names)
    return [match[0] for match in matches if match and not os.path.exists(f"/proc/{match[1]}")]


def _remove(names: list[str]) -> None:
    for name in names:
        subprocess.run(  # one that was never made is none that stays
            ["ip", "netns", "delete", name],  # noqa: S607
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
