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

from engine.checkpoints.downloads import NUM_READERS, Downloads, RemoteFile
from engine.checkpoints.errors import SourceUnavailable, TransferInterrupted, UnsupportedCheckpoint
from engine.checkpoints.layout import DESCRIPTION_FILES, check_sizes, choose_files, gguf_files
from engine.checkpoints.placement import bring_model

_MAX_LISTED_OBJECTS = 10_000
_PIECE_BYTES = 1 << 17  # larger ones are new pages from the kernel every time
_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class _Object:
    key: str
    num_bytes: int
    etag: str

    @property
    def name(self) -> str:
        return self.key.rsplit("/", 1)[-1]


class S3Source:
    """The objects directly under one prefix, or a GGUF model there; ``connect`` makes a client."""

    def __init__(self, bucket: str, prefix: str, *, connect: Callable[[], Any]) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._connect = connect
        self._client: Any = None
        self._listing: list[_Object] | None = None

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
        lines = "".join(f"{item.num_bytes} {item.etag} {item.key}\n" for item in self._listing)
        return hashlib.sha256(lines.encode()).hexdigest()

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        listing = self._list() if self._listing is None else self._listing
        files = [self._remote_file(item) for item in listing]
        return bring_model(files, scratch, folder, sha256=sha256, what=self.uri)

    def fetch_description(self, scratch: Path) -> dict[str, Path]:
        items = [item for item in self._list() if item.name in DESCRIPTION_FILES]
        files = [self._remote_file(item) for item in items]
        check_sizes({file.name: file.num_bytes for file in files}, where=self.uri)
        return Downloads(scratch).fetch(files, title="Looking")

    def _list(self) -> list[_Object]:
        """What makes up the model, sorted by key."""
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
        return [objects[name] for name in names]

    def _list_prefix(self) -> list[_Object]:
        prefix = self._prefix.rpartition("/")[0] if self._is_gguf else self._prefix
        prefix = f"{prefix}/" if prefix else ""
        objects: list[_Object] = []
        with self._errors():
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
            with self._errors():
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
    def _errors(self) -> Iterator[None]:
        """Says in one line what boto3 says in many classes."""
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
            raise self._refusal(status, error) from error
        except (EndpointConnectionError, HTTPClientError, IncompleteReadError) as error:
            raise TransferInterrupted(str(error)) from error
        except BotoCoreError as error:
            raise SourceUnavailable(
                f"cannot read {self.uri} ({error}). Check AWS_ENDPOINT_URL, region and credentials."
            ) from error

    def _refusal(self, status: int, error: Exception) -> Exception:
        if status in _TRANSIENT_STATUS:
            return TransferInterrupted(str(error))
        if status == 412:
            return SourceUnavailable(
                f"{self.uri} was changed while it was downloaded: pull again for the new version."
            )
        remedy = {
            401: "Check the credentials.",
            403: "Check the credentials and their permissions (ListBucket, GetObject).",
            404: "Correct the bucket or the prefix.",
        }.get(status, "Check AWS_ENDPOINT_URL, region and credentials.")
        return SourceUnavailable(f"cannot read {self.uri} ({error}). {remedy}")


def s3_client() -> Any:
    """boto3's client with a connection for every reader."""
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client("s3", config=Config(max_pool_connections=NUM_READERS))
