"""Objects under one ``s3://bucket/prefix``, by boto3's client; every fault of it in one line.

Endpoint, region and credentials are boto3's own business (its environment and files). Blocking:
calls belong in threads; the client takes many at a time. Must not know images.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from cache_tiers.tier import TierError

_REMEDIES = {
    401: "check the credentials",
    403: "check the credentials and their permissions (GetObject, PutObject, and ListBucket, "
    "without which S3 calls a missing object forbidden)",
    404: "correct the bucket",
    429: "it asks for fewer requests",
    503: "it asks for fewer requests",
}
_PIECE_BYTES = 1 << 18
"""Between two of them a reader looks whether anybody waits still."""


class BucketFailed(TierError):
    """The store did not do it; the message says why and what to do."""


class WrongSizeError(Exception):
    """An object does not have the size that it should have."""


class _NoSuchObject(BucketFailed):
    """Of a store that was asked to take one: it can't be."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Of one request."""

    num_connections: int = 16
    connect_timeout_s: float = 0.5
    read_timeout_s: float = 1.0
    """For the first bytes and between any two of them."""
    num_attempts: int = 2
    """Of what the store was too busy for, or the network lost."""


class Bucket:
    """Owner: one ``ObjectTier``."""

    def __init__(self, url: str, client: Any) -> None:
        """``client`` is boto3's, or does what its ``get_object``, ``head_object``, ``put_object``
        and ``close`` do.
        """
        self._url = url
        self._name, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._client = client

    def get(self, name: str, memory: memoryview, is_wanted: Callable[[], bool]) -> bool:
        """Fill ``memory`` with an object of its size; False if there is no such object. A slow one
        is given up once it is not wanted any more.

        Raises ``WrongSizeError``, ``BucketFailed``.
        """
        try:
            with self._faults():
                response = self._client.get_object(**self._place(name))
                with closing(response["Body"]) as body:
                    if "ContentLength" not in response:
                        raise BucketFailed("an answer does not say how long it is")
                    if response["ContentLength"] != len(memory):
                        raise WrongSizeError
                    _read(body, memory, is_wanted)
        except _NoSuchObject:
            return False
        return True

    def has(self, name: str) -> bool:
        """Raises ``BucketFailed``."""
        try:
            with self._faults():
                self._client.head_object(**self._place(name))
        except _NoSuchObject:
            return False
        return True

    def put(self, name: str, content: bytes) -> None:
        """Whole or not at all, over whatever has the name. Raises ``BucketFailed``."""
        with self._faults():
            self._client.put_object(**self._place(name), Body=io.BytesIO(content))

    def close(self) -> None:
        self._client.close()

    def _place(self, name: str) -> dict[str, str]:
        return {"Bucket": self._name, "Key": self._prefix + name}

    @contextmanager
    def _faults(self) -> Iterator[None]:
        from botocore.exceptions import ClientError

        try:
            yield
        except (BucketFailed, WrongSizeError):
            raise
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            if status == 404 and code != "NoSuchBucket":
                raise _NoSuchObject(f"{_line(error)} (check AWS_ENDPOINT_URL)") from error
            remedy = _REMEDIES.get(status, "check AWS_ENDPOINT_URL, region and credentials")
            raise BucketFailed(f"{_line(error)} ({remedy})") from error
        except Exception as error:  # boto3 lets out whatever an answer's headers trip it over
            raise BucketFailed(
                f"{_line(error)} (check the network, AWS_ENDPOINT_URL, region and credentials)"
            ) from error


def _read(body: Any, memory: memoryview, is_wanted: Callable[[], bool]) -> None:
    while memory:
        if not is_wanted():
            raise BucketFailed("it was too slow")
        num_read = body.readinto(memory[:_PIECE_BYTES])
        if num_read == 0:
            raise BucketFailed("an answer ended too early")
        memory = memory[num_read:]


def _line(error: Exception) -> str:
    """Servers' own words, on one line and not for ever."""
    return " ".join(str(error).split())[:300]


def s3_client(limits: ClientLimits) -> Any:
    """boto3's client that gives up soon: what it can't have in time is computed. Its own checksums
    are off, since images prove themselves. Raises ``TierError`` for a configuration that it can't
    use.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        max_pool_connections=limits.num_connections,
        connect_timeout=limits.connect_timeout_s,
        read_timeout=limits.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": limits.num_attempts},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise TierError(
            f"no object store: {_line(error)} (check AWS_ENDPOINT_URL, region and credentials)"
        ) from error
