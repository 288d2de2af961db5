"""Makes a mock EC2's workers real: each running instance is a raylet of this machine, with its own
metadata service and the product's node agent beside it, as its user data would start them.

An instance that ends takes its processes along; one whose raylet has ended ends itself.
Knows no Serve.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.aws_loop_cloud import POOL, MockCloud
from benchmarks.aws_loop_metadata import Metadata, metadata_server
from deployments.aws.notices import SPOT_ACTION_PATH

_POLL_S = 0.5
_STOP_S = 10.0
_OBJECT_STORE_BYTES = 100_000_000
LABEL = "headwater.pool"


@dataclass(slots=True)
class MockInstance:
    """A worker that runs."""

    instance_id: str
    zone: str
    metadata: Metadata
    raylet: subprocess.Popen[bytes]
    agent: subprocess.Popen[bytes]
    has_joined: bool = False
    ends_s: float | None = None
    """When EC2 takes it, on the monotonic clock."""


@dataclass(slots=True)
class MockInstances:
    """A thread that looks every half second. Context manager."""

    cloud: MockCloud
    gcs_address: str
    environment: dict[str, str]
    folder: Path
    """For logs."""
    seen_zones: list[str] = field(default_factory=list)
    """Of each instance there was."""
    _live: dict[str, MockInstance] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> MockInstances:
        self._thread = threading.Thread(target=self._run, name="mock instances")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for instance in list(self._live.values()):
            self._end(instance)
        self._stack.close()

    @property
    def live(self) -> list[MockInstance]:
        return list(self._live.values())

    def interrupt(self, instance: MockInstance, *, left_s: float) -> None:
        """EC2 wants the instance back: a spot notice now, the end in ``left_s``."""
        instance.ends_s = time.monotonic() + left_s
        at = datetime.fromtimestamp(time.time() + left_s, UTC)
        notice = {"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
        instance.metadata.values[SPOT_ACTION_PATH] = msgspec.json.encode(notice).decode()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            running = self.cloud.workers("running", "pending")
            for instance_id, told in running.items():
                tags = {tag["Key"]: tag["Value"] for tag in told.get("Tags", ())}
                if instance_id not in self._live and tags.get("ray-user-node-type") == POOL:
                    self._start(instance_id, told)
            for instance in list(self._live.values()):
                if instance.instance_id not in running:
                    self._end(instance)
                elif self._is_over(instance):
                    self.cloud.terminate(instance.instance_id)

    def _start(self, instance_id: str, told: dict[str, Any]) -> None:
        metadata = self._stack.enter_context(metadata_server())
        metadata.values["instance-id"] = instance_id
        environment = {
            **self.environment,
            "RAY_CLOUD_INSTANCE_ID": instance_id,
            "RAY_NODE_TYPE_NAME": POOL,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url,
        }
        raylet = [
            *("ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
            *("--address", self.gcs_address),
            *("--num-cpus", "1", "--num-gpus", "1", "--labels", f"{LABEL}={POOL}"),
            *("--object-store-memory", str(_OBJECT_STORE_BYTES)),
        ]
        agent = ["deployments.aws.node_agent"]
        asked = {**environment, "RAY_ADDRESS": self.gcs_address}
        zone = told["Placement"]["AvailabilityZone"]
        self.seen_zones.append(zone)
        self._live[instance_id] = MockInstance(
            instance_id,
            zone,
            metadata,
            self._spawn(f"raylet-{instance_id}", raylet, environment),
            self._spawn(f"agent-{instance_id}", agent, asked),
        )

    def _spawn(
        self, name: str, module: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *module],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _is_over(self, instance: MockInstance) -> bool:
        """EC2's time has come, or the raylet has ended, which `ray start --block` doesn't tell."""
        if instance.ends_s is not None and time.monotonic() >= instance.ends_s:
            return True
        if instance.raylet.poll() is not None:
            return True
        is_there = _has_raylet(instance.raylet.pid)
        if instance.has_joined and not is_there:
            return True
        instance.has_joined |= is_there
        return False

    def _end(self, instance: MockInstance) -> None:
        """At once, as a machine that loses its power."""
        del self._live[instance.instance_id]
        for process in (instance.agent, instance.raylet):
            end_group(process)


def end_group(process: subprocess.Popen[bytes], *, grace_s: float = 0.0) -> None:
    """End what the process began, and all below it: politely for ``grace_s``, then at once."""
    family = _family_of(process.pid)
    if grace_s and process.poll() is None:
        process.terminate()
        psutil.wait_procs(family, timeout=grace_s)
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait(_STOP_S)


def end_all_of(folder: Path) -> None:
    """End what works in ``folder`` by its command line: Serve's HAProxy is nobody's child when its
    successor has taken over."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in part for part in process.cmdline()):
                process.kill()


def _family_of(pid: int) -> list[psutil.Process]:
    """All of the session that the process began, and all below them, which have others."""
    members = [each for each in psutil.process_iter() if _session_of(each.pid) == pid]
    family = {each.pid: each for each in members}
    for member in members:
        with suppress(psutil.NoSuchProcess):
            family |= {each.pid: each for each in member.children(recursive=True)}
    return list(family.values())


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended
        return None


def _has_raylet(pid: int) -> bool:
    try:
        return any(child.name() == "raylet" for child in psutil.Process(pid).children())
    except psutil.Error:
        return False
