"""Which replicas each application has, within one process: what Serve said last, and who listens.

`discovery.AddressRouter` publishes, a gateway follows. The two live on different event loops, and
Serve pickles the router's module by value, so this is the one place both find by importing it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Replica:
    """One running replica as Serve describes it."""

    node_id: str
    metadata: Mapping[str, Any] = field(repr=False)
    """What its `record_replica_metadata` returned; a secret is in it, which no log may show."""


Listener = Callable[[tuple[Replica, ...]], None]
"""Gets all replicas of the application, whenever they changed. Called on the publisher's thread."""


class ReplicaBoard:
    """Last published replicas and one listener per application. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replicas: dict[str, tuple[Replica, ...]] = {}
        self._listeners: dict[str, Listener] = {}

    def publish(self, application: str, replicas: tuple[Replica, ...]) -> None:
        """Replace what is known of `application` and tell its listener."""
        with self._lock:
            self._replicas[application] = replicas
            listener = self._listeners.get(application)
            # Under the lock, so that two publications cannot arrive in the wrong order.
            if listener is not None:
                listener(replicas)

    def follow(self, application: str, listener: Listener) -> None:
        """Tell `listener` of the replicas known now, if any, and of every change from now on."""
        with self._lock:
            self._listeners[application] = listener
            known = self._replicas.get(application)
            if known is not None:
                listener(known)

    def unfollow(self, application: str) -> None:
        with self._lock:
            self._listeners.pop(application, None)


replica_board = ReplicaBoard()
"""The process's own. Module state, because Serve makes the router where we can hand it nothing."""
