"""Uploads a checkpoint of this machine to an object store, where a cold node then gets all of it:
the model, weights packed for ranks, compiled steps, and headwater.json, by which they are checked.

The compiled steps are those of this machine for any model: their names don't say which. A library
is code, so whoever may write to the prefix is trusted with the nodes that read it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.extras import published_name
from engine.checkpoints.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    encode_manifest,
    entry_of_file,
)
from engine.checkpoints.s3 import s3_client, s3_errors
from engine.checkpoints.store import Checkpoint, checkpoint_path, open_checkpoint
from engine.native.support import compile_cache

_SHA256 = "sha256"
"""Under this name an object says what it holds; so a publication that was stopped goes on."""

_NOT_FOUND = 404


def publish(
    name: str, target: str, *, home: Path, connect: Callable[[], Any] = s3_client
) -> Manifest:
    """Make ``target``, s3://bucket/prefix, hold the checkpoint called ``name``; what it now holds.

    Objects that are there already are not sent again. headwater.json is replaced last. Raises
    `CheckpointError`.
    """
    bucket, _, prefix = target.removeprefix("s3://").strip("/").partition("/")
    if not target.startswith("s3://") or not bucket or not prefix:
        raise SourceUnavailable(
            f"{target} names no bucket and prefix: write it as s3://bucket/prefix."
        )
    checkpoint = open_checkpoint(checkpoint_path(home, name))
    extras = _extras(checkpoint)
    entries = {file: entry_of_file(path) for file, path in extras.items()}
    manifest = msgspec.structs.replace(checkpoint.manifest, extras=entries)
    paths = {**{file: checkpoint.path / file for file in manifest.files}, **extras}
    with _upload_errors(target):
        client = connect()
        for file, path in paths.items():
            _upload(client, bucket, f"{prefix}/{file}", path, manifest.all_files[file])
        client.put_object(
            Bucket=bucket, Key=f"{prefix}/{MANIFEST_NAME}", Body=encode_manifest(manifest)
        )
    return manifest


def _extras(checkpoint: Checkpoint) -> dict[str, Path]:
    """What ranks of this machine have made, by the names that it travels under."""
    packed = {path.name: path for path in checkpoint.path.glob("packed-*.weights")}
    libraries = compile_cache(checkpoint.path).glob("step-*.so")
    return packed | {published_name(path): path for path in libraries}


def _upload(client: Any, bucket: str, key: str, path: Path, entry: FileEntry) -> None:
    if _present_sha256(client, bucket, key) == entry.sha256:
        return
    with tqdm(total=entry.bytes, desc=path.name, unit="B", unit_scale=True, disable=None) as bar:
        client.upload_file(
            str(path),
            bucket,
            key,
            ExtraArgs={"Metadata": {_SHA256: entry.sha256}},
            Callback=bar.update,
        )


def _present_sha256(client: Any, bucket: str, key: str) -> str | None:
    from botocore.exceptions import ClientError

    try:
        head = client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == _NOT_FOUND:
            return None
        raise
    sha256: str | None = head["Metadata"].get(_SHA256)
    return sha256


@contextmanager
def _upload_errors(target: str) -> Iterator[None]:
    """As those of reading; the one that boto3 adds for uploads holds one of these."""
    from boto3.exceptions import S3UploadFailedError

    with s3_errors(target):
        try:
            yield
        except S3UploadFailedError as error:
            if error.__context__ is None:
                raise SourceUnavailable(f"cannot write to {target} ({error}).") from error
            raise error.__context__ from error
