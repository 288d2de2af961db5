"""What a fleet's caches tell a gateway, and the prompts it looks up, for ``benchmarks.index``.

Chains of keys as chat turns make them, in caches that are full: an engine that stores a chain
evicts its oldest one. Every message is decoded anew, as it comes off a channel: Python keeps the
hash of a key with the object, so that keys used twice would be looked up faster than real ones.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from cache_tiers.keys import KEY_BYTES
from engine.messages import CacheEvents, CacheSnapshot

CHAIN_KEYS = 24
"""Of a chat turn of 3,000 tokens, at 128 tokens a key."""
_SHARED_PERCENT = 20
"""Of chains that are stored: so many are held by another engine, too."""


@dataclass(frozen=True, slots=True)
class Step:
    """One engine's events, and a prompt that reaches the gateway meanwhile."""

    engine_id: str
    events: CacheEvents
    prompt: list[bytes]

    @property
    def num_keys(self) -> int:
        return len(self.events.stored) + len(self.events.evicted) + len(self.prompt)


class CacheTraffic:
    """Full caches of ``num_engines``, of so many keys each."""

    def __init__(self, num_engines: int, keys_per_engine: int, *, seed: int) -> None:
        self._random = random.Random(seed)
        self.engine_ids = [f"engine-{number}" for number in range(num_engines)]
        self._num_chains = max(1, keys_per_engine // CHAIN_KEYS)
        self._chains: dict[str, deque[list[bytes]]] = {id_: deque() for id_ in self.engine_ids}
        self._sequences = dict.fromkeys(self.engine_ids, 0)

    def snapshots(self) -> Iterator[tuple[str, bytes]]:
        """One of each engine, encoded, whose cache is filled by it."""
        for engine_id, chains in self._chains.items():
            chains.extend(self._new_chain() for _ in range(self._num_chains))
            keys = [key for chain in chains for key in chain]
            yield engine_id, msgspec.msgpack.encode(CacheSnapshot(0, keys))

    def steps(self, num_steps: int) -> list[Step]:
        """In all of them a chain is stored, and the oldest one evicted."""
        return [self._step() for _ in range(num_steps)]

    def _step(self) -> Step:
        engine_id = self._random.choice(self.engine_ids)
        chains = self._chains[engine_id]
        chain = self._new_chain()
        chains.append(chain)
        evicted = chains.popleft()
        self._sequences[engine_id] += 1
        events = CacheEvents(self._sequences[engine_id], chain, evicted)
        # A turn of a conversation that some engine holds, with something new at its end.
        prompt = [*self._held_chain()[:-3], *(self._new_key() for _ in range(3))]
        return Step(engine_id, _sent(events), copied(prompt))

    def _new_chain(self) -> list[bytes]:
        if self._random.randrange(100) < _SHARED_PERCENT and self._chains[self.engine_ids[0]]:
            return self._held_chain()
        return [self._new_key() for _ in range(CHAIN_KEYS)]

    def _held_chain(self) -> list[bytes]:
        while not (chains := self._chains[self._random.choice(self.engine_ids)]):
            pass
        return self._random.choice(chains)

    def _new_key(self) -> bytes:
        return self._random.randbytes(KEY_BYTES)


def copied(keys: list[bytes]) -> list[bytes]:
    """Equal keys that nobody has hashed yet."""
    return [bytes(bytearray(key)) for key in keys]


def decode_snapshot(payload: bytes) -> CacheSnapshot:
    """As it comes off a channel."""
    return msgspec.msgpack.decode(payload, type=CacheSnapshot)


def _sent(events: CacheEvents) -> CacheEvents:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(events), type=CacheEvents)
