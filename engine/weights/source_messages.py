"""What ``from_source`` and its child process say to each other: msgpack, one message a frame."""

import msgspec

from cache_tiers.weights.messages import Stage, WeightFile, WeightsOrder


class Bring(msgspec.Struct, frozen=True, tag="bring"):
    """To the child, first."""

    order: WeightsOrder
    home: str
    scratch: str
    to_memory: bool
    keep_on_disk: bool
    max_bytes_per_s: float | None


class Targets(msgspec.Struct, frozen=True, tag="targets"):
    """To the child: where the files of ``Found`` shall be written, in their order."""

    paths: tuple[str, ...]


class Found(msgspec.Struct, frozen=True, tag="found"):
    """From the child: the model's files; it waits for ``Targets``."""

    files: tuple[WeightFile, ...]


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """From the child, several times a second, also when nothing has moved."""

    num_done_bytes: int
    num_bytes: int
    """0: not known."""
    positions: tuple[int, ...] | None = None
    """Of each target: all before it is written. None: bytes go to the disk."""


class Whole(msgspec.Struct, frozen=True, tag="whole"):
    """From the child: all is in memory, and checked; or on the disk, if there were no targets."""

    manifest: bytes
    revision: str
    num_bytes: int
    stages: tuple[Stage, ...]


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """From the child, last: what is in memory is on the disk, too, or shall not be."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From the child, last."""

    kind: str
    """Name of the `WeightsError`."""
    message: str


ToChild = Bring | Targets
FromChild = Found | Moved | Whole | Kept | Failed
