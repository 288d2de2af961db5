"""A source whose files are read in another way than its own: counted, slowed, or out of memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.checkpoints.placement import bring_model
from engine.checkpoints.remote_file import RemoteFile
from engine.weights.throttle import Throttle


@dataclass(frozen=True, slots=True)
class RelayedSource:
    """As `Source`: ``files`` are those of the model that ``uri`` names, at its ``version``."""

    uri: str
    default_name: str
    version: str
    files: Sequence[RemoteFile]

    def stamp(self) -> str:
        return self.version

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        return bring_model(self.files, scratch, folder, sha256=sha256, what=self.uri)


def watched(
    file: RemoteFile, throttle: Throttle, on_bytes: Callable[[int], None] = lambda _: None
) -> RemoteFile:
    """The same file, read no faster than ``throttle`` lets it; ``on_bytes`` hears of each piece."""

    def read(begin: int, end: int) -> Iterator[bytes]:
        for piece in file.read(begin, end):
            throttle.pass_through(len(piece))
            on_bytes(len(piece))
            yield piece

    return replace(file, read=read)
