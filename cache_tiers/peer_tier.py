"""Another node's cache as a tier: images come over plain TCP, several streams side by side.

A load is one round trip: each stream asks for a contiguous part of the keys and gets what is there
behind the answer. Every image is checked in the thread that received it, while it is in the
processor's cache. Nothing that a peer does costs more than ``PeerLimits.timeout_s``; one that broke
its word is left alone for a while. Only read from: another node stores for itself. Must not know
arenas or who lends.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from cache_tiers.backoff import Backoff
from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey
from cache_tiers.messages import PeerAddress
from cache_tiers.peer.messages import MAX_KEYS, Answer, PeerFailed, PeerLimits, Request
from cache_tiers.peer.stream import Stream
from cache_tiers.peer.streams import Streams
from cache_tiers.tier import Lookup, TierError, TierKind
from cache_tiers.unsound_keys import UnsoundKeys


@dataclass(frozen=True, slots=True)
class PeerStats:
    """Counted since the start."""

    num_loaded: int = 0
    """Images that came and were sound."""
    num_missing: int = 0
    num_unsound: int = 0
    """That came and were not what was wanted."""
    num_failures: int = 0
    """Times that the peer was gone, too slow, or spoke nonsense."""
    num_spared: int = 0
    """Calls that did not ask, since the peer had failed shortly before."""


class _Load:
    """What is known of one ``load`` while its parts go on; threads write to it, and no two of them
    to the same image.
    """

    def __init__(self, images: Sequence[BlockImage]) -> None:
        self.images = images
        self.are_sound = [False] * len(images)
        self.num_missing = 0
        self.unsound: list[BlockImage] = []
        self.failures: list[str] = []

    def take(self, index: int, *, is_sound: bool) -> None:
        self.are_sound[index] = is_sound
        if not is_sound:
            self.unsound.append(self.images[index])


class PeerTier:
    """A ``Tier``. Owner: the node's cache, one for each peer; made on a running event loop.

    Calls in a pause after a failure raise ``TierError`` at once. A key whose image was unsound is
    not asked for again.
    """

    kind = TierKind.PEER

    def __init__(self, address: PeerAddress, limits: PeerLimits | None = None) -> None:
        self._limits = limits or PeerLimits()
        self._streams = Streams(address, self._limits)
        self._backoff = Backoff(f"peer {address.host}:{address.port}")
        self._unsound = UnsoundKeys()
        self._num_loaded = 0
        self._num_missing = 0
        self._num_unsound = 0

    @property
    def stats(self) -> PeerStats:
        return PeerStats(
            num_loaded=self._num_loaded,
            num_missing=self._num_missing,
            num_unsound=self._num_unsound,
            num_failures=self._backoff.num_failures,
            num_spared=self._backoff.num_spared,
        )

    async def find(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[Lookup]:
        """A round trip that ``load`` does not need before it; the peer takes images from its disk
        for this as well.
        """
        self._backoff.check()
        found: list[bool] = []
        try:
            async with self._stream() as stream:
                for begin in range(0, len(keys), MAX_KEYS):
                    part = keys[begin : begin + MAX_KEYS]
                    found += await self._ask(stream, layout, part, with_images=False)
        except PeerFailed as error:
            raise self._backoff.failed(str(error)) from error
        return [
            Lookup.HIT
            if is_found and not self._unsound.has(layout.fingerprint, key)
            else Lookup.MISS
            for key, is_found in zip(keys, found, strict=True)
        ]

    async def load(self, images: Sequence[BlockImage]) -> list[bool]:
        """All of one layout. Raises ``TierError`` when the peer failed and no image came."""
        self._backoff.check()
        load = _Load(images)
        wanted = [
            index
            for index, image in enumerate(images)
            if not self._unsound.has(image.layout.fingerprint, image.key)
        ]
        async with asyncio.TaskGroup() as group:
            for part in self._parts(images, wanted):
                group.create_task(self._load_part(load, part))
        self._count(load)
        if not load.failures:
            self._backoff.succeeded()
            return load.are_sound
        error = self._backoff.failed(load.failures[0])
        if not any(load.are_sound):
            raise error
        return load.are_sound

    async def store(self, images: Sequence[BlockImage]) -> list[bool]:
        """Always raises ``TierError``."""
        raise TierError("a peer stores for itself: it is only read from")

    async def close(self) -> None:
        """What is under way fails."""
        await self._streams.close()

    def _parts(self, images: Sequence[BlockImage], wanted: Sequence[int]) -> list[Sequence[int]]:
        """Contiguous ones of about the same size, one for each stream."""
        if not wanted:
            return []
        num_bytes = len(wanted) * images[0].layout.image_bytes
        num_parts = min(num_bytes // self._limits.min_stream_bytes, self._limits.streams_per_load)
        part_len = min(-(-len(wanted) // max(num_parts, 1)), MAX_KEYS)
        return [wanted[begin : begin + part_len] for begin in range(0, len(wanted), part_len)]

    async def _load_part(self, load: _Load, part: Sequence[int]) -> None:
        keys = [load.images[index].key for index in part]
        try:
            async with self._stream() as stream:
                found = await self._ask(stream, load.images[part[0]].layout, keys, with_images=True)
                held = [index for index, is_held in zip(part, found, strict=True) if is_held]
                load.num_missing += len(part) - len(held)
                await stream.receive_images(
                    [load.images[index] for index in held],
                    lambda at, is_sound: load.take(held[at], is_sound=is_sound),
                )
        except PeerFailed as error:
            load.failures.append(str(error))

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[Stream]:
        """For an exchange within the time limit. Raises ``PeerFailed``."""
        try:
            async with asyncio.timeout(self._limits.timeout_s), self._streams.borrow() as stream:
                yield stream
        except TimeoutError as error:
            seconds = self._limits.timeout_s
            raise PeerFailed(f"it was not done within {seconds:g} s") from error

    async def _ask(
        self, stream: Stream, layout: ImageLayout, keys: Sequence[BlockKey], *, with_images: bool
    ) -> list[bool]:
        """Which of ``keys`` the peer has; with images, these follow in the stream."""
        image_bytes = layout.image_bytes
        request = Request(
            layout.fingerprint, image_bytes, list(keys), self._limits.timeout_s, with_images
        )
        await stream.send_frame(msgspec.msgpack.encode(request))
        try:
            answer = msgspec.msgpack.decode(await stream.receive_frame(), type=Answer)
        except msgspec.MsgspecError as error:
            raise PeerFailed(f"its answer is none: {error}") from error
        if answer.image_bytes != image_bytes or len(answer.found) != len(keys):
            raise PeerFailed(
                f"it was asked for {len(keys)} images of {image_bytes} bytes and answers for "
                f"{len(answer.found)} of {answer.image_bytes}"
            )
        return answer.found

    def _count(self, load: _Load) -> None:
        for image in load.unsound:
            self._unsound.add(image.layout.fingerprint, image.key)
        if load.unsound:
            load.failures.append(f"{len(load.unsound)} of its images are not what they should be")
        self._num_loaded += sum(load.are_sound)
        self._num_missing += load.num_missing
        self._num_unsound += len(load.unsound)
