"""What goes wrong with weights on their way, thing by thing, and how often of a thousand.

Each function prepares one trial; the lane draws when and where. Must not know who judges it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cold_start_places import (
    flip_on_disk,
)
from benchmarks.cold_start_trials import Ending, Lane, Trial
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Origin

Prepare = Callable[[Lane, str], Trial]

_MOST_KILL_S = 0.9
"""Of a promotion that takes about as long."""
_SHORT_STALL_S = 1.5
_LONG_STALL_S = 120.0
_STORM = 10**6
"""Requests: more than anybody makes."""
_HANDSHAKE_BYTES = 600


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    prepare: Prepare
    num_of_1000: int
    needs_disk: bool = False
    """That is mounted for it."""


def source_cut(lane: Lane, model: str) -> Trial:
    lane.store.harm.begin("cut", after_bytes=_somewhere(lane), num=lane.draw.randint(1, 4))
    return Trial(lane.order(model), "whole")


def source_flip(lane: Lane, model: str) -> Trial:
    lane.store.harm.begin("flip", after_bytes=_somewhere(lane))
    return Trial(lane.order(model), "either")


def slow_down(lane: Lane, model: str) -> Trial:
    lane.store.harm.begin("refuse", num=lane.draw.randint(1, 8))
    return Trial(lane.order(model), "whole")


def slow_down_storm(lane: Lane, model: str) -> Trial:
    lane.store.harm.begin("refuse", num=_STORM)
    return Trial(lane.order(model), "refused")


def source_stall(lane: Lane, model: str) -> Trial:
    lane.store.harm.begin(
        "stall", after_bytes=_somewhere(lane), stall_s=lane.draw.uniform(0.1, _SHORT_STALL_S)
    )
    return Trial(lane.order(model), "whole")


def source_stall_for_ever(lane: Lane, model: str) -> Trial:
    """On one connection; others bring what it owes."""
    lane.store.harm.begin("stall", after_bytes=_somewhere(lane), stall_s=_LONG_STALL_S)
    return Trial(lane.order(model), "whole")


def short_object(lane: Lane, model: str) -> Trial:
    lane.store.root = lane.versions.short
    return Trial(lane.order(model, _a_rung(lane)), "refused")


def lying_index(lane: Lane, model: str) -> Trial:
    lane.store.root = lane.versions.lying
    return Trial(lane.order(model, _a_rung(lane)), "refused")


def wrong_pin(lane: Lane, model: str) -> Trial:
    pin = lane.draw.randbytes(32).hex()
    return Trial(lane.order(model, _a_rung(lane), weights_sha256=pin), "refused")


def peer_cut(lane: Lane, model: str) -> Trial:
    lane.link.harm.begin("cut", after_bytes=_somewhere(lane), num=lane.draw.randint(1, 6))
    return _from_peer(lane, model)


def peer_flip(lane: Lane, model: str) -> Trial:
    lane.link.harm.begin("flip", after_bytes=_somewhere(lane), num=lane.draw.randint(1, 3))
    return _from_peer(lane, model)


def peer_handshake_flip(lane: Lane, model: str) -> Trial:
    lane.link.harm.begin("flip", after_bytes=lane.draw.randrange(_HANDSHAKE_BYTES))
    return _from_peer(lane, model)


def peer_stall(lane: Lane, model: str) -> Trial:
    num_streams = lane.draw.randint(1, 8)
    lane.link.harm.begin(
        "stall", after_bytes=_somewhere(lane), num=num_streams, stall_s=_LONG_STALL_S
    )
    return _from_peer(lane, model, failing="")  # others may bring what one owes


def peer_gone(lane: Lane, model: str) -> Trial:
    lane.link.is_open = False
    return _from_peer(lane, model)


def peer_dies(lane: Lane, model: str) -> Trial:
    def die() -> None:
        time.sleep(lane.draw.uniform(0.0, 0.1))
        lane.link.is_open = False
        lane.link.cut_all()

    order = lane.order(model, parents=(lane.link.address,))
    return Trial(order, "whole", meanwhile=die)  # or it had all by then, and nothing happened


def peer_of_another_version(lane: Lane, model: str) -> Trial:
    return _from_peer(lane, model, lane.other_version.address)


def peer_lies(lane: Lane, model: str) -> Trial:
    return _from_peer(lane, model, lane.liar.address)


def disk_flip(lane: Lane, model: str) -> Trial:
    path = _a_shard(lane, lane.versions.put_on_disk(lane.home("main"), model))
    flip_on_disk(path, lane.draw.randrange(path.stat().st_size))
    return Trial(lane.order(model), "whole", failing="disk")


def disk_cut(lane: Lane, model: str) -> Trial:
    path = _a_shard(lane, lane.versions.put_on_disk(lane.home("main"), model))
    os.truncate(path, lane.draw.randrange(path.stat().st_size))
    return Trial(lane.order(model, _a_rung(lane)), "whole")


def disk_full(lane: Lane, model: str) -> Trial:
    return _to_disk(lane, model)


def disk_read_only(lane: Lane, model: str) -> Trial:
    lane.set_read_only(is_read_only=True)
    return _to_disk(lane, model)


def memory_short(lane: Lane, model: str) -> Trial:
    lane.versions.put_on_disk(lane.home("short_of_memory"), model)
    return Trial(lane.order(model), "refused", at="short_of_memory", old_rung=Rung.ON_DISK)


def child_killed(lane: Lane, model: str) -> Trial:
    def kill() -> None:
        time.sleep(lane.draw.uniform(0.0, _MOST_KILL_S))
        lane.kill_child("main")

    return Trial(lane.order(model, _a_rung(lane)), "whole", meanwhile=kill)


def node_killed(lane: Lane, model: str) -> Trial:
    def kill() -> None:
        time.sleep(lane.draw.uniform(0.0, _MOST_KILL_S))
        lane.kill("main")

    return Trial(lane.order(model, _a_rung(lane)), "whole", meanwhile=kill)


FAULTS = (
    Fault("source_cut", source_cut, 100),
    Fault("source_flip", source_flip, 80),
    Fault("slow_down", slow_down, 60),
    Fault("slow_down_storm", slow_down_storm, 10),
    Fault("source_stall", source_stall, 30),
    Fault("source_stall_for_ever", source_stall_for_ever, 5),
    Fault("short_object", short_object, 60),
    Fault("lying_index", lying_index, 50),
    Fault("wrong_pin", wrong_pin, 40),
    Fault("peer_cut", peer_cut, 80),
    Fault("peer_flip", peer_flip, 80),
    Fault("peer_handshake_flip", peer_handshake_flip, 30),
    Fault("peer_stall", peer_stall, 15),
    Fault("peer_gone", peer_gone, 30),
    Fault("peer_dies", peer_dies, 50),
    Fault("peer_of_another_version", peer_of_another_version, 30),
    Fault("peer_lies", peer_lies, 20),
    Fault("disk_flip", disk_flip, 50),
    Fault("disk_cut", disk_cut, 30),
    Fault("disk_full", disk_full, 20, needs_disk=True),
    Fault("disk_read_only", disk_read_only, 20, needs_disk=True),
    Fault("memory_short", memory_short, 40),
    Fault("child_killed", child_killed, 40),
    Fault("node_killed", node_killed, 30),
)


def _somewhere(lane: Lane) -> int:
    """In the model's bytes."""
    return lane.draw.randrange(lane.versions.num_bytes)


def _a_rung(lane: Lane) -> Rung:
    return lane.draw.choice((Rung.STAGED, Rung.STAGED, Rung.ON_DISK))


def _a_shard(lane: Lane, folder: Path) -> Path:
    return folder / lane.versions.a_shard(lane.draw.randrange(3))


def _from_peer(
    lane: Lane, model: str, parent: PeerAddress | None = None, *, failing: Origin = "peer"
) -> Trial:
    """The source, which is asked last, has it, too."""
    parents = (parent or lane.link.address,)
    return Trial(lane.order(model, parents=parents), "whole", failing=failing)


def _to_disk(lane: Lane, model: str) -> Trial:
    """Memory takes what the disk can't."""
    ending: Ending = "refused"
    rung = _a_rung(lane)
    if rung is Rung.STAGED:
        ending = "whole"
    return Trial(lane.order(model, rung), ending, at="small_disk")
