"""The processes of the measured fleets: the processor time they take, and the cores they run on.

Must not know HTTP.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class CpuReading:
    """At one moment, in seconds."""

    wall_s: float
    fleet_s: float
    """Of processor time, of the fleets' processes and this one, the load's."""
    machine_s: float
    """Of processor time, whosever: other programs share the machine."""


def read_cpu(serve_pid: int) -> CpuReading:
    """``serve_pid``: of the process that Ray was started from."""
    machine = psutil.cpu_times()
    spare_s = machine.idle + machine.iowait
    return CpuReading(
        time.perf_counter(),
        sum(map(_cpu_s, [*_family(serve_pid), psutil.Process()])),
        sum(machine) - machine.guest - machine.guest_nice - spare_s,
    )


def busy_shares(before: CpuReading, after: CpuReading) -> tuple[float, float]:
    """Of all cores in between: by the fleets and their load, and by all programs."""
    core_s = (after.wall_s - before.wall_s) * (os.cpu_count() or 1)
    fleet_s = after.fleet_s - before.fleet_s
    return fleet_s / core_s, (after.machine_s - before.machine_s) / core_s


def pin_replicas(serve_pid: int, deployments: tuple[str, ...], num_cores: int) -> None:
    """The n-th replica of each deployment, children and threads included, to the n-th core,
    beginning again after the last."""
    family = _family(serve_pid)
    for deployment in deployments:
        title = f"ServeReplica:{deployment}"
        replicas = sorted(
            (process for process in family if title in " ".join(_command_of(process))),
            key=lambda process: process.pid,
        )
        for number, replica in enumerate(replicas):
            for process in (replica, *replica.children(recursive=True)):
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, {number % num_cores})


def _family(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has ended
        return 0.0
    return times.user + times.system


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
