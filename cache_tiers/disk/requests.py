"""Transfers between slots and memory: neighbouring slots are one request of some MiB, since a
device takes as long for a small one as for a part of a large one.

Blocking; runs in a folder's threads. Must not know what is held, only where to move bytes.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from cache_tiers.block_image import BlockImage
from cache_tiers.disk.files import Files
from cache_tiers.disk.segment_table import Place

IsCancelled = Callable[[], bool]

MAX_REQUEST_BYTES = 4 * 1024**2
_MAX_BUFFERS = 1024
"""IOV_MAX."""
_BAD_SECTORS = {errno.ENODATA, errno.EILSEQ, errno.EBADMSG, errno.EUCLEAN}
"""Of the medium, and what file systems say of their own checksums."""


@dataclass(frozen=True, slots=True)
class Move:
    """An image to be read from its place, or written there."""

    index: int
    """The caller's."""
    place: Place
    image: BlockImage


class Outcome(Enum):
    """What reading an image gave."""

    SOUND = "sound"
    UNSOUND = "unsound"
    """Other bytes than were stored, or none: a second try would be no better."""
    UNREADABLE = "unreadable"
    """These sectors are bad, or the whole device is away for now: its other answers tell."""
    GONE = "gone"
    """The file is not there."""
    FAILED = "failed"
    """Not now, for a reason that says nothing of the image."""


@dataclass(frozen=True, slots=True)
class Request:
    """Neighbouring slots of one segment, at least one."""

    moves: Sequence[Move]

    @property
    def name(self) -> str:
        return self.moves[0].place.segment.name

    @property
    def offset(self) -> int:
        place = self.moves[0].place
        return place.slot * place.segment.layout.image_bytes

    @property
    def num_bytes(self) -> int:
        return len(self.moves) * self.moves[0].image.layout.image_bytes

    @property
    def buffers(self) -> list[memoryview]:
        return [move.image.memory for move in self.moves]


class ReadResult(NamedTuple):
    """Of one request."""

    outcomes: list[Outcome]
    """In the order of its moves."""
    error: OSError | None
    """The device's, if it gave one."""


def plan_requests(moves: Sequence[Move]) -> list[Request]:
    """As few requests as can be, in the order of the slots."""
    requests: list[Request] = []
    run: list[Move] = []
    for move in sorted(moves, key=lambda each: (each.place.segment.number, each.place.slot)):
        if run and not _continues(run, move):
            requests.append(Request(run))
            run = []
        run.append(move)
    return [*requests, Request(run)] if run else []


def _continues(run: Sequence[Move], move: Move) -> bool:
    last = run[-1].place
    return (
        last.segment is move.place.segment
        and last.slot + 1 == move.place.slot
        and (len(run) + 1) * move.image.layout.image_bytes <= MAX_REQUEST_BYTES
        and len(run) < _MAX_BUFFERS
    )


def read(files: Files, request: Request, is_cancelled: IsCancelled) -> ReadResult:
    """Fill the images and check them, right away while they are in the CPU's caches."""
    if is_cancelled():
        return ReadResult([Outcome.FAILED] * len(request.moves), None)
    error = None
    num_bytes = 0
    try:
        num_bytes = files.read(request.name, request.buffers, request.offset)
    except OSError as reason:
        error = reason
    if num_bytes == request.num_bytes:
        return ReadResult(
            [Outcome.SOUND if move.image.is_sound() else Outcome.UNSOUND for move in request.moves],
            None,
        )
    if len(request.moves) == 1:
        return ReadResult([_failure(error)], error)
    # One bad sector or a file's end is no loss of the neighbours.
    singles = [read(files, Request([move]), is_cancelled) for move in request.moves]
    outcomes = [outcome for single in singles for outcome in single.outcomes]
    return ReadResult(outcomes, next((each.error for each in singles if each.error), None))


def write(files: Files, request: Request) -> None:
    """Raises ``OSError``; then any part may have been written."""
    num_bytes = files.write(request.name, request.buffers, request.offset)
    if num_bytes != request.num_bytes:
        raise OSError(errno.EIO, f"the device took {num_bytes} of {request.num_bytes} bytes")


def is_medium_bad(error: OSError) -> bool:
    """Whether the device is at fault, or a part of it, rather than room, rights or the process."""
    return error.errno == errno.EIO or error.errno in _BAD_SECTORS


def _failure(error: OSError | None) -> Outcome:
    if error is None or error.errno in _BAD_SECTORS:  # none: the file is too short
        return Outcome.UNSOUND
    kinds = {errno.EIO: Outcome.UNREADABLE, errno.ENOENT: Outcome.GONE}
    return kinds.get(error.errno or 0, Outcome.FAILED)
