"""What a node's CPU memory and NVMe hold of prompts computed there, and how fast KV moves.

Every block that was computed or loaded is written to memory at once; what memory drops goes to
NVMe, what NVMe drops is gone. Must not know replicas or requests.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.messages import Medium


@dataclass(slots=True)
class _Store:
    """The key used longest ago stands first; whether routers are told of it."""

    capacity_blocks: int
    keys: OrderedDict[bytes, bool] = field(default_factory=OrderedDict)
    stored: dict[bytes, None] = field(default_factory=dict)
    """Of those that routers are told of, since they were told last."""
    evicted: dict[bytes, None] = field(default_factory=dict)

    def put(self, key: bytes, *, is_told: bool) -> None:
        """Precondition: it is not held."""
        self.keys[key] = is_told
        if is_told and self.evicted.pop(key, True):  # came back: nothing to tell
            self.stored[key] = None

    def drop(self, key: bytes) -> bool:
        """Returns whether routers are told of it."""
        is_told = self.keys.pop(key)
        if is_told and self.stored.pop(key, True):
            self.evicted[key] = None
        return is_told


class NodeTiers:
    """Owner of both tiers of one node."""

    def __init__(self, *, host_blocks: int, disk_blocks: int, key_stride: int) -> None:
        self._host = _Store(host_blocks)
        self._disk = _Store(disk_blocks)
        self._key_stride = key_stride

    def store(self, keys: Sequence[bytes]) -> None:
        """The prompt of ``keys`` was computed or loaded. Its beginning outlives its end."""
        host, disk = self._host, self._disk
        if host.capacity_blocks == 0:
            return
        in_host, in_disk = host.keys, disk.keys
        for number, key in zip(range(len(keys), 0, -1), reversed(keys), strict=True):
            if key in in_host:
                in_host.move_to_end(key)
                continue
            if key in in_disk:
                disk.drop(key)
            host.put(key, is_told=number % self._key_stride == 0)
        while len(host.keys) > host.capacity_blocks:
            key = next(iter(host.keys))
            is_told = host.drop(key)
            if disk.capacity_blocks:
                disk.put(key, is_told=is_told)
        while len(disk.keys) > disk.capacity_blocks:
            disk.drop(next(iter(disk.keys)))

    def match(self, keys: Sequence[bytes], begin: int, *, with_disk: bool) -> int:
        """How far the prompt of ``keys`` goes on, from its block ``begin``, in what is held."""
        host, disk = self._host.keys, self._disk.keys
        end = begin
        while end < len(keys) and (keys[end] in host or (with_disk and keys[end] in disk)):
            end += 1
        return end

    def take_changes(self) -> list[tuple[Medium, list[bytes], list[bytes]]]:
        """Per medium what it gained and lost since the last call, if anything."""
        changes = []
        for medium, store in ((Medium.HOST, self._host), (Medium.DISK, self._disk)):
            if store.stored or store.evicted:
                # Stored from the end of a prompt to its beginning; told the other way round.
                changes.append((medium, list(reversed(store.stored)), list(store.evicted)))
                store.stored, store.evicted = {}, {}
        return changes


@dataclass(slots=True)
class Link:
    """One transfer after the other, at full speed."""

    tokens_per_s: float
    """0: there is none."""
    free_at_s: float = 0.0

    def done_s(self, now_s: float, num_tokens: int) -> float:
        """When a transfer asked for now would be done. Precondition: there is a link."""
        return max(now_s, self.free_at_s) + num_tokens / self.tokens_per_s

    def occupy(self, until_s: float) -> None:
        self.free_at_s = max(self.free_at_s, until_s)
