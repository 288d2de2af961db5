"""What a headwater.json at a source says of the files beside it: their hashes, and what travels
along. Reads that file, no other one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from engine.checkpoints.errors import CorruptCheckpoint, SourceUnavailable, TransferInterrupted
from engine.checkpoints.extras import is_extra
from engine.checkpoints.manifest import MANIFEST_NAME, FileEntry, Manifest
from engine.checkpoints.remote_file import RemoteFile

_MAX_MANIFEST_BYTES = 16 << 20


def as_published(
    names: Sequence[str], files: Mapping[str, RemoteFile], *, where: str
) -> list[RemoteFile]:
    """The model's files ``names`` out of all ``files`` of a place, as its headwater.json has them.

    Raises `CorruptCheckpoint` where a file isn't of its size, or weights are missing. Without
    headwater.json they are as they are.
    """
    if MANIFEST_NAME not in files:
        return [files[name] for name in names]
    manifest = _read(files[MANIFEST_NAME], where)
    weights = {name for name in manifest.files if name.endswith(".safetensors")}
    missing = sorted(weights - set(names))
    if missing:
        raise CorruptCheckpoint(
            f"{where} lacks {missing[0]}, which its {MANIFEST_NAME} names. Publish the model again."
        )
    # Weights that it doesn't name are what another revision has left there.
    chosen = [name for name in names if name in weights or not name.endswith(".safetensors")]
    extras = [name for name in sorted(manifest.extras) if name in files and is_extra(name)]
    entries = {**manifest.extras, **manifest.files}
    return [_expected(files[name], entries.get(name), where) for name in [*chosen, *extras]]


def _expected(file: RemoteFile, entry: FileEntry | None, where: str) -> RemoteFile:
    if entry is None:
        return file
    if entry.bytes != file.num_bytes:
        raise CorruptCheckpoint(
            f"{where}: {file.name} has {file.num_bytes} bytes instead of the {entry.bytes} that "
            f"{MANIFEST_NAME} says. Publish the model again; if you changed the file by hand, "
            f"delete {MANIFEST_NAME} there."
        )
    return replace(file, sha256=entry.sha256)


def _read(file: RemoteFile, where: str) -> Manifest:
    if file.num_bytes > _MAX_MANIFEST_BYTES:
        raise CorruptCheckpoint(f"{where}: {MANIFEST_NAME} has {file.num_bytes} bytes, too many.")
    try:
        content = b"".join(file.read(0, file.num_bytes))
        return msgspec.json.decode(content, type=Manifest)
    except TransferInterrupted as error:
        raise SourceUnavailable(f"cannot read {where}/{MANIFEST_NAME} ({error}).") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptCheckpoint(
            f"{where}/{MANIFEST_NAME} is not a checkpoint manifest ({error}). Publish the model "
            "again, or delete that file."
        ) from error
