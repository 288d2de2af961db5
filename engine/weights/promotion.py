"""Brings one model one or two rungs up: from the nearest place that has it, checked, whole.

The node's disk is asked first, then other nodes, then the source. What fails half way leaves
nothing behind; what was there before stays. Must not know why it is wanted, nor what other models
there are.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.chunk_messages import Lent
from cache_tiers.weights.errors import AbsentError, NoRoom, OriginFailed, WeightsError, WrongWeights
from cache_tiers.weights.messages import Origin, Stage, WeightFile, WeightsOrder
from engine.checkpoints.errors import CheckpointError
from engine.checkpoints.manifest import Manifest
from engine.checkpoints.staging import Staging
from engine.weights.arrival import Arrival
from engine.weights.disk_models import DiskModels, settle_on_disk, staging_of
from engine.weights.from_source import SourceProgress
from engine.weights.manifests import check_digests, check_pins, decode_manifest, stamp_of_coming
from engine.weights.model_on_node import Promoted
from engine.weights.origins import Brought, DiskOrigin, WeightsOrigin, stop
from engine.weights.staged_models import StagedModel, StagedModels

MakeFiles = Callable[[Sequence[WeightFile]], list[ArrivingFile]]
"""In memory. Raises `NoRoom`, after it has made what room it may."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where models are on this node."""

    disk: DiskModels
    staged: StagedModels
    make_files: MakeFiles
    release_files: Callable[[Sequence[ArrivingFile]], None]


class Promotion:
    """``run`` once; the rest may be looked at meanwhile. On one event loop."""

    def __init__(self, order: WeightsOrder, place: Place) -> None:
        """``order.rung`` is the goal."""
        self.order = order
        self._place = place
        self._disk = DiskOrigin(place.disk)
        self._origins: Sequence[WeightsOrigin] = ()
        self._arrival: Arrival | None = None
        self._stamp = ""
        self._manifest: bytes | None = None
        self._source_progress: SourceProgress | None = None
        self.failed_origins: list[Origin] = []
        """Places that didn't do what they should have, in the order in which they were asked."""
        self.rest: asyncio.Task[None] | None = None
        """The copy to the disk, which goes on after ``run``. The files may not go before it."""
        self.staged: StagedModel | None = None
        self.origin: Origin = ""
        """Where the bytes came from, in the end."""

    async def run(self, origins: Sequence[WeightsOrigin]) -> Promoted:
        """From the disk, or the first of ``origins`` that has it. Raises `WeightsError` in one
        line: what ends it, or what was wrong with each place."""
        self._origins = origins
        try:
            if self.order.rung < Rung.STAGED:
                return await self._run(self._to_disk)
            try:
                return await self._run(self._to_memory)
            except NoRoom as error:
                self.order = msgspec.structs.replace(self.order, rung=Rung.ON_DISK)
                return replace(await self._run(self._to_disk), failure=error)
        except (CheckpointError, OSError) as error:
            raise OriginFailed(f"{self.order.model} can't be brought: {error}") from error

    # What may be looked at

    def note_progress(self, progress: SourceProgress) -> None:
        """What the source says of itself."""
        self._source_progress = progress

    @property
    def num_bytes(self) -> int:
        """0: not known yet."""
        if self._arrival is not None and self._arrival.files:
            return self._arrival.num_bytes
        return 0 if self._source_progress is None else self._source_progress.num_bytes

    @property
    def num_done_bytes(self) -> int:
        if self._arrival is not None and self._arrival.files:
            return self._arrival.num_arrived_bytes
        return 0 if self._source_progress is None else self._source_progress.num_done_bytes

    def can_be_lent(self, order: WeightsOrder) -> bool:
        """Whether these are, or will be, what ``order`` means."""
        mine = self.order
        return order.source == mine.source and all(
            theirs is None or theirs == ours
            for theirs, ours in (
                (order.source_sha256, mine.source_sha256),
                (order.weights_sha256, mine.weights_sha256),
            )
        )

    @property
    def lent(self) -> Lent:
        """What other nodes may have of it by now."""
        files = () if self._arrival is None else tuple(self._arrival.files)
        if not files:
            return Lent("", (), None)
        return Lent(self._stamp or stamp_of_coming(self.order, files), files, self._manifest)

    # From one place after the other

    async def _run(self, bring: Callable[[WeightsOrigin], Awaitable[Promoted]]) -> Promoted:
        failures: list[str] = []
        for origin in (self._disk, *self._origins):
            try:
                promoted = await bring(origin)
                self.origin = promoted.origin
                return promoted
            except AbsentError:
                continue
            except OriginFailed as error:
                failures.append(f"from {_NAMES[origin.kind]}: {error}")
                self.failed_origins.append(origin.kind)
        raise OriginFailed("; ".join(failures) or f"{self.order.model} is nowhere to be had")

    async def _to_memory(self, origin: WeightsOrigin) -> Promoted:
        order, arrival = self.order, self._begin(origin, self._place.make_files)
        try:
            brought = await origin.bring(order, arrival, self._note_offer)
            self.rest = brought.rest
            if brought.manifest is None:
                on_disk = await self._to_memory(self._disk)
                return replace(on_disk, origin=origin.kind, stages=brought.stages + on_disk.stages)
            manifest, hashing = await self._check(origin, arrival, brought)
            began_s = time.monotonic()
            self.staged = self._place.staged.put(
                order,
                arrival.files,
                manifest=manifest,
                encoded=brought.manifest,
                stamp=self.lent.stamp,
            )
            linking = Stage("seal and link", time.monotonic() - began_s)
            stages = (*brought.stages, *hashing, linking)
            return Promoted(Rung.STAGED, self.staged.copy, origin.kind, stages)
        except BaseException as error:
            await self._give_up(arrival, error)
            raise
        finally:
            if self.staged is None:
                self._place.release_files(arrival.files)

    async def _to_disk(self, origin: WeightsOrigin) -> Promoted:
        if origin is self._disk:
            return Promoted(Rung.ON_DISK, (await self._disk.find(self.order)).copy, "disk", ())
        if origin.kind == "source":
            arrival = self._begin(origin, _no_files)
            brought = await origin.bring(self.order, arrival, self._note_offer)
            stages = brought.stages
        else:
            async with staging_of(self._place.disk.home, self.order.model) as staging:
                stages = await self._receive(origin, staging)
        stored = await asyncio.to_thread(self._place.disk.open, self.order)
        if stored is None:
            raise OriginFailed("what was brought to the disk isn't what was ordered")
        return Promoted(Rung.ON_DISK, stored.copy, origin.kind, stages)

    async def _receive(self, origin: WeightsOrigin, staging: Staging) -> tuple[Stage, ...]:
        """From a place that fills files, into files on the disk."""
        arrival = self._begin(origin, lambda files: _disk_files(files, staging.new))
        try:
            brought = await origin.bring(self.order, arrival, self._note_offer)
            assert brought.manifest is not None
            manifest, hashing = await self._check(origin, arrival, brought)
            began_s = time.monotonic()
            await settle_on_disk(staging, manifest, brought.manifest, arrival.files)
            stage = Stage("write to disk", time.monotonic() - began_s, arrival.num_bytes)
            return (*brought.stages, *hashing, stage)
        except BaseException as error:
            await self._give_up(arrival, error)
            raise
        finally:
            files, self._arrival = arrival.files, None  # nobody is lent what is closed
            for file in files:
                file.close()

    def _begin(self, origin: WeightsOrigin, make: MakeFiles) -> Arrival:
        self._stamp, self._manifest, self._source_progress = "", None, None
        self._arrival = Arrival(make, is_hashed=not origin.hashes)
        return self._arrival

    def _note_offer(self, stamp: str, manifest: bytes | None) -> None:
        self._stamp, self._manifest = stamp, manifest

    async def _check(
        self, origin: WeightsOrigin, arrival: Arrival, brought: Brought
    ) -> tuple[Manifest, tuple[Stage, ...]]:
        """That these are the files of the manifest, and the ordered ones."""
        assert brought.manifest is not None
        manifest = decode_manifest(brought.manifest)
        self._manifest = brought.manifest
        try:
            check_pins(manifest, self.order)
        except WrongWeights as error:
            if origin.kind == "source":
                raise
            raise OriginFailed(str(error)) from error
        if brought.is_checked:
            return manifest, ()
        began_s = time.monotonic()
        digests = await arrival.digests()
        try:
            check_digests(manifest, arrival.files, digests)
        except OriginFailed:
            if origin is self._disk:
                await asyncio.to_thread(self._disk.distrust)
            raise
        return manifest, (Stage("hash to the end", time.monotonic() - began_s),)

    async def _give_up(self, arrival: Arrival, error: BaseException) -> None:
        if self.rest is not None:
            await stop(self.rest)
            self.rest = None
        why = error if isinstance(error, WeightsError) else OriginFailed("it was broken off")
        await arrival.give_up(why)


def _disk_files(files: Sequence[WeightFile], folder: Path) -> list[ArrivingFile]:
    made: list[ArrivingFile] = []
    try:
        made.extend(ArrivingFile.on_disk(file, folder / file.name) for file in files)
    except BaseException:
        for each in made:
            each.close()
        raise
    return made


def _no_files(_: Sequence[WeightFile]) -> list[ArrivingFile]:
    raise AssertionError("it was asked for the disk, where it makes files itself")


_NAMES = {"disk": "the disk", "peer": "other nodes", "source": "the source"}
