"""An S3 bucket as a tier, for prefixes that live long and are shared by the whole cluster.

One object per image, named by layout and key: readers find it without a listing or an index,
writers need no agreement (two of one name wrote the same), an object appears whole or not at all,
and it proves itself. Many are moved side by side.

Bundles of images would need fewer requests, but an index or an agreement on where a bundle begins,
and would be read for a part of what is in them. A GET costs boto3 0.8 ms of processor time: on
loopback, 16 threads bring 0.33 GB/s in images of 360 KiB and 0.7 GB/s in those of 5 MiB (16 tokens
of a 70B model), which is a size that S3 is made for. Must not know arenas or policies.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

from cache_tiers.backoff import Backoff
from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.config import ObjectStoreConfig
from cache_tiers.keys import BlockKey
from cache_tiers.object.batch import Batch, Outcome
from cache_tiers.object.bucket import Bucket, ClientLimits, WrongSizeError, s3_client
from cache_tiers.tier import Lookup, TierError, TierKind
from cache_tiers.unsound_keys import UnsoundKeys

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObjectLimits:
    """What a call may take, however many images it is for."""

    client: ClientLimits = field(default_factory=ClientLimits)
    load_timeout_s: float = 2.0
    """Of ``find`` too."""
    store_timeout_s: float = 30.0
    """No prompt waits for it."""


@dataclass(frozen=True, slots=True)
class ObjectStats:
    """Counted since the start."""

    num_loaded: int = 0
    """Images that came and were sound."""
    num_stored: int = 0
    num_missing: int = 0
    num_unsound: int = 0
    """Objects that were not what was wanted."""
    num_failures: int = 0
    """Calls in which the store refused, was too slow, or spoke nonsense."""
    num_spared: int = 0
    """Calls that did not ask, since the store had failed shortly before."""


class ObjectTier:
    """A ``Tier``. Owner: the node's cache."""

    kind = TierKind.OBJECT

    def __init__(self, bucket: Bucket, name: str, limits: ObjectLimits) -> None:
        self._name = f"object store {name}"
        self._bucket = bucket
        self._limits = limits
        self._executor = ThreadPoolExecutor(limits.client.num_connections, "object-tier")
        self._backoff = Backoff(self._name)
        self._thread = threading.local()
        self._unsound = UnsoundKeys()
        self._stats = ObjectStats()

    @classmethod
    async def open(
        cls,
        config: ObjectStoreConfig,
        *,
        limits: ObjectLimits | None = None,
        connect: Callable[[ClientLimits], Any] = s3_client,
    ) -> Self:
        """Asks nothing of the store: a wrong bucket shows at the first call, as one that goes wrong
        later does. Raises ``TierError`` if boto3 can't use its configuration.
        """
        limits = limits or ObjectLimits()
        client = await asyncio.to_thread(connect, limits.client)
        return cls(Bucket(config.url, client), config.url, limits)

    @property
    def stats(self) -> ObjectStats:
        return replace(
            self._stats,
            num_failures=self._backoff.num_failures,
            num_spared=self._backoff.num_spared,
        )

    async def find(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[Lookup]:
        """A request per key, which ``load`` does not need before it."""

        def find_one(index: int) -> Outcome:
            if self._unsound.has(layout.fingerprint, keys[index]):
                return Outcome.MISSING
            is_there = self._bucket.has(_name(layout, keys[index]))
            return Outcome.DONE if is_there else Outcome.MISSING

        batch = Batch(len(keys))
        error = await self._work_off(batch, find_one, self._limits.load_timeout_s)
        if error is not None:
            raise error
        return [
            Lookup.HIT if outcome is Outcome.DONE else Lookup.MISS for outcome in batch.outcomes
        ]

    async def load(self, images: Sequence[BlockImage]) -> list[bool]:
        """Raises ``TierError`` when the store failed and no image came."""
        batch = Batch(len(images))
        error = await self._work_off(
            batch, lambda index: self._load_one(batch, images[index]), self._limits.load_timeout_s
        )
        self._note_unsound(
            image
            for image, outcome in zip(images, batch.outcomes, strict=True)
            if outcome is Outcome.UNSOUND
        )
        self._stats = replace(
            self._stats,
            num_loaded=self._stats.num_loaded + batch.outcomes.count(Outcome.DONE),
            num_missing=self._stats.num_missing + batch.outcomes.count(Outcome.MISSING),
        )
        return _results(batch, error)

    async def store(self, images: Sequence[BlockImage]) -> list[bool]:
        """Raises ``TierError`` when the store failed and no image is there."""
        batch = Batch(len(images))
        error = await self._work_off(
            batch, lambda index: self._store_one(batch, images[index]), self._limits.store_timeout_s
        )
        for image, outcome in zip(images, batch.outcomes, strict=True):
            if outcome is Outcome.DONE:
                self._unsound.discard(image.layout.fingerprint, image.key)
        num_stored = self._stats.num_stored + batch.outcomes.count(Outcome.DONE)
        self._stats = replace(self._stats, num_stored=num_stored)
        return _results(batch, error)

    async def close(self) -> None:
        """Return when no thread is left; those that wait for the store do so a few seconds more."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)
        self._bucket.close()

    def _note_unsound(self, images: Iterable[BlockImage]) -> None:
        names = []
        for image in images:
            self._unsound.add(image.layout.fingerprint, image.key)
            names.append(_name(image.layout, image.key))
        if names:
            num_unsound = self._stats.num_unsound + len(names)
            self._stats = replace(self._stats, num_unsound=num_unsound)
            logger.warning(
                "%s: %d objects are not what they should be, such as %s; they are not asked for "
                "again until they are replaced",
                self._name,
                len(names),
                names[0],
            )

    def _load_one(self, batch: Batch, image: BlockImage) -> Outcome:
        """In a thread. The image's own memory gets nothing but what is sound."""
        if self._unsound.has(image.layout.fingerprint, image.key):
            return Outcome.MISSING
        copy = BlockImage(
            image.layout, self._scratch(image.layout.image_bytes), image.key, image.num_tokens
        )
        try:
            name = _name(image.layout, image.key)
            is_there = self._bucket.get(name, copy.memory, batch.is_open)
        except WrongSizeError:
            return Outcome.UNSOUND
        if not is_there:
            return Outcome.MISSING
        if not copy.is_sound():
            return Outcome.UNSOUND
        with batch.memory() as is_ours:
            if is_ours:
                image.memory[:] = copy.memory
        return Outcome.DONE

    def _scratch(self, num_bytes: int) -> memoryview:
        """The calling thread's own; kept, since fresh pages cost more than filling them."""
        buffer: bytearray | None = getattr(self._thread, "buffer", None)
        if buffer is None or len(buffer) < num_bytes:
            buffer = self._thread.buffer = bytearray(num_bytes)
        return memoryview(buffer)[:num_bytes]

    def _store_one(self, batch: Batch, image: BlockImage) -> Outcome:
        """In a thread."""
        with batch.memory() as is_ours:
            if not is_ours:
                return Outcome.OPEN
            content = bytes(image.memory)
        self._bucket.put(_name(image.layout, image.key), content)
        return Outcome.DONE

    async def _work_off(
        self, batch: Batch, work: Callable[[int], Outcome], timeout_s: float
    ) -> TierError | None:
        """Returns what to raise if nothing came of it. Raises ``TierError`` without trying."""
        self._backoff.check()
        num_threads = min(len(batch.outcomes), self._limits.client.num_connections)
        loop = asyncio.get_running_loop()
        threads = [
            loop.run_in_executor(self._executor, batch.run, work) for _ in range(num_threads)
        ]
        try:
            ended = (await asyncio.wait(threads, timeout=timeout_s))[0] if threads else set()
        finally:
            is_late = not all(thread.done() for thread in threads)
            batch.close()
            for thread in threads:
                thread.cancel()
        for thread in ended:
            if not thread.cancelled():  # by ``close``
                thread.result()
        reason = batch.failure or (f"it was not done within {timeout_s:g} s" if is_late else None)
        if reason is not None:
            return self._backoff.failed(reason)
        self._backoff.succeeded()
        return None


def _name(layout: ImageLayout, key: BlockKey) -> str:
    return f"{layout.fingerprint.hex()}/{key.hex()}"


def _results(batch: Batch, error: TierError | None) -> list[bool]:
    results = [outcome is Outcome.DONE for outcome in batch.outcomes]
    if error is not None and not any(results):
        raise error
    return results
