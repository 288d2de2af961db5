"""Machines with a network link of bounded rate each: network namespaces around a bridge.

Made by ``ip`` and ``tc``, which need root; where that can't be, ``capped_links`` skips the test.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Machine:
    """One namespace."""

    namespace: str
    host: str

    def command(self, command: Sequence[str]) -> list[str]:
        """That runs there."""
        return ["ip", "netns", "exec", self.namespace, *command]


@contextmanager
def capped_links(rates_mbit: Sequence[int]) -> Iterator[list[Machine]]:
    """One machine for each rate, that of its link in each direction."""
    prefix = f"hw{os.getpid()}"
    hub = f"{prefix}-hub"
    made: list[str] = []
    try:
        try:
            _make(hub, made)
            _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", hub, "link", "set", "bridge", "up")
            machines = [
                _make_machine(f"{prefix}-{number}", number, hub, rate, made)
                for number, rate in enumerate(rates_mbit, start=1)
            ]
        except (OSError, subprocess.CalledProcessError) as error:
            words = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"network namespaces with capped links can't be made here: {words}")
        yield machines
    finally:
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _make_machine(name: str, number: int, hub: str, rate_mbit: int, made: list[str]) -> Machine:
    _make(name, made)
    machine = Machine(name, f"10.231.7.{number}")
    port = f"port{number}"
    ends = ["name", "eth0", "type", "veth", "peer", "name", port, "netns", hub]
    _run("ip", "-n", name, "link", "add", *ends)
    _run("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", name, "addr", "add", f"{machine.host}/24", "dev", "eth0")
    for namespace, device in ((name, "eth0"), (hub, port)):
        cap(namespace, device, rate_mbit)
    _run("ip", "-n", name, "link", "set", "eth0", "up")
    _run("ip", "-n", name, "link", "set", "lo", "up")
    return machine


def cap(namespace: str, device: str, rate_mbit: int) -> None:
    """What leaves a device, or replace the rate that it had."""
    shape = ["tbf", "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "50ms"]
    _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)


def _make(namespace: str, made: list[str]) -> None:
    _run("ip", "netns", "add", namespace)
    made.append(namespace)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
