"""A model in an object store: ``s3://bucket/prefix``, or ``s3://bucket/key.gguf``.

Endpoint, region and credentials are boto3's own business (its environment and files). Every read
names the ETag that was listed, so that an object which is replaced meanwhile is noticed.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.checkpoints.downloads import Downloads
from engine.checkpoints.errors import SourceUnavailable, TransferInterrupted, UnsupportedCheckpoint
from engine.checkpoints.layout import DESCRIPTION_FILES, check_sizes, choose_files, gguf_files
from engine.checkpoints.manifest import MANIFEST_NAME
from engine.checkpoints.placement import bring_model
from engine.checkpoints.publication import as_published
from engine.checkpoints.remote_file import RemoteFile
from engine.checkpoints.transfer import NUM_READERS

_MAX_LISTED_OBJECTS = 10_000
_PIECE_BYTES = 1 << 17  # larger ones are new pages from the kernel every time
_SILENCE_S = 15.0
"""A store that sends nothing for so long is asked anew."""
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class _Object:
    key: str
    num_bytes: int
    etag: str

    @property
    def name(self) -> str:
        return self.key.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class _Listing:
    names: tuple[str, ...]
    """What makes up the model, sorted."""
    objects: dict[str, _Object]
    """All that lie there, by name."""


class S3Source:
    """The objects directly under one prefix, or a GGUF model there; ``connect`` makes a client."""

    def __init__(self, bucket: str, prefix: str, *, connect: Callable[[], Any]) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._connect = connect
        self._client: Any = None
        self._listing: _Listing | None = None

    @classmethod
    def parse(cls, rest: str, *, connect: Callable[[], Any]) -> Self:
        """Read what follows ``s3:``; raises `SourceUnavailable`."""
        bucket, _, prefix = rest.removeprefix("//").partition("/")
        prefix = prefix.strip("/")
        if not rest.startswith("//") or not bucket or not prefix:
            raise SourceUnavailable(
                f"s3:{rest} names no bucket and prefix: write it as s3://bucket/prefix."
            )
        return cls(bucket, prefix, connect=connect)

    @property
    def _is_gguf(self) -> bool:
        return self._prefix.endswith(".gguf")

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    @property
    def default_name(self) -> str:
        return self._prefix.rsplit("/", 1)[-1].removesuffix(".gguf")

    def stamp(self) -> str:
        self._listing = self._list()
        names = [*self._listing.names, *({MANIFEST_NAME} & self._listing.objects.keys())]
        items = [self._listing.objects[name] for name in names]
        lines = "".join(f"{item.num_bytes} {item.etag} {item.key}\n" for item in items)
        return hashlib.sha256(lines.encode()).hexdigest()

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        return bring_model(self.remote_files(), scratch, folder, sha256=sha256, what=self.uri)

    def remote_files(self) -> list[RemoteFile]:
        listing = self._list() if self._listing is None else self._listing
        files = {name: self._remote_file(item) for name, item in listing.objects.items()}
        if self._is_gguf:
            return [files[name] for name in listing.names]
        return as_published(listing.names, files, where=self.uri)

    def fetch_description(self, scratch: Path) -> dict[str, Path]:
        listing = self._list()
        described = [name for name in listing.names if name in DESCRIPTION_FILES]
        files = [self._remote_file(listing.objects[name]) for name in described]
        check_sizes({file.name: file.num_bytes for file in files}, where=self.uri)
        return Downloads(scratch).fetch(files, title="Looking")

    def _list(self) -> _Listing:
        try:
            objects = {item.name: item for item in self._list_prefix()}
        except TransferInterrupted as error:
            raise SourceUnavailable(
                f"cannot reach {self.uri} ({error}). Check the network and AWS_ENDPOINT_URL."
            ) from error
        if not objects:
            raise SourceUnavailable(
                f"{self.uri} holds no objects. Correct the bucket or the prefix."
            )
        if self._is_gguf:
            names = gguf_files(self._prefix.rsplit("/", 1)[-1], objects.keys(), where=self.uri)
        else:
            names = choose_files(objects.keys(), where=self.uri)
        return _Listing(names, objects)

    def _list_prefix(self) -> list[_Object]:
        prefix = self._prefix.rpartition("/")[0] if self._is_gguf else self._prefix
        prefix = f"{prefix}/" if prefix else ""
        objects: list[_Object] = []
        with s3_errors(self.uri):
            pages = self._get_client().get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=prefix, Delimiter="/"):
                for entry in page.get("Contents", ()):
                    item = _Object(entry["Key"], entry["Size"], entry["ETag"])
                    if item.name:  # not the empty object that marks a folder
                        objects.append(item)
                if len(objects) > _MAX_LISTED_OBJECTS:
                    raise UnsupportedCheckpoint(
                        f"{self.uri} holds more than {_MAX_LISTED_OBJECTS} objects: name the "
                        "prefix of one model."
                    )
        return objects

    def _remote_file(self, item: _Object) -> RemoteFile:
        def read(begin: int, end: int) -> Iterator[bytes]:
            with s3_errors(self.uri):
                response = self._get_client().get_object(
                    Bucket=self._bucket,
                    Key=item.key,
                    Range=f"bytes={begin}-{end - 1}",
                    IfMatch=item.etag,
                )
                with closing(response["Body"]) as body:
                    while piece := body.read(_PIECE_BYTES):
                        yield piece

        return RemoteFile(item.name, item.num_bytes, read)

    def _get_client(self) -> Any:
        if self._client is None:
            self._client = self._connect()
        return self._client


@contextmanager
def s3_errors(uri: str) -> Iterator[None]:
    """Says in one line, of ``uri``, what boto3 says in many classes."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        EndpointConnectionError,
        HTTPClientError,
        IncompleteReadError,
    )

    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        raise _refusal(uri, status, error) from error
    except (EndpointConnectionError, HTTPClientError, IncompleteReadError) as error:
        raise TransferInterrupted(str(error)) from error
    except BotoCoreError as error:
        raise SourceUnavailable(
            f"cannot read {uri} ({error}). Check AWS_ENDPOINT_URL, region and credentials."
        ) from error


def _refusal(uri: str, status: int, error: Exception) -> Exception:
    if status in _TRANSIENT_STATUS:
        return TransferInterrupted(str(error))
    if status == 412:
        return SourceUnavailable(
            f"{uri} was changed while it was downloaded: pull again for the new version."
        )
    remedy = {
        401: "Check the credentials.",
        403: "Check the credentials and their permissions (ListBucket, GetObject; to "
        "publish PutObject).",
        404: "Correct the bucket or the prefix.",
    }.get(status, "Check AWS_ENDPOINT_URL, region and credentials.")
    return SourceUnavailable(f"no access to {uri} ({error}). {remedy}")


def s3_client() -> Any:
    """boto3's client with a connection for every reader."""
    import boto3
    from botocore.config import Config

    config = Config(
        max_pool_connections=NUM_READERS,
        connect_timeout=_SILENCE_S,
        read_timeout=_SILENCE_S,
    )
    return boto3.session.Session().client("s3", config=config)
