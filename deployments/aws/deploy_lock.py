"""One deploy at a time: an object in the config bucket, made only where there is none.

Held for the seconds in which Serve is told and the pointer moves, and not for uploads or waiting.
Whoever dies while holding it is waited for no longer than ``HELD_S``.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from deployments.aws.aws_clients import AwsClients, aws_errors, error_code
from deployments.aws.errors import DeployConflict

LOCK_KEY = "serve/deploying.json"
HELD_S = 300.0
_LOST = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})


class DeployLock:
    """Of one config bucket; ``now_s`` is seconds since 1970, ``holder`` a name for people."""

    def __init__(
        self, clients: AwsClients, bucket: str, *, holder: str, now_s: Callable[[], float]
    ) -> None:
        self._s3 = clients.s3
        self._bucket = bucket
        self._holder = holder
        self._now_s = now_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises `DeployConflict` where another holds it, and `AwsRefused`."""
        etag = self._take()
        try:
            yield
        finally:
            self._release(etag)

    def _take(self) -> str:
        where = f"s3://{self._bucket}/{LOCK_KEY}"
        with aws_errors(f"write {where}"):
            etag = self._put(IfNoneMatch="*")
            if etag is None:
                etag = self._put(IfMatch=self._expired_etag(where))
        if etag is None:
            raise DeployConflict("somebody else has just begun to deploy: try again in a moment")
        return etag

    def _put(self, **condition: str) -> str | None:
        """None if the condition didn't hold."""
        from botocore.exceptions import ClientError

        body = json.dumps({"holder": self._holder, "until_s": self._now_s() + HELD_S})
        try:
            answer = self._s3.put_object(
                Bucket=self._bucket, Key=LOCK_KEY, Body=body.encode(), **condition
            )
        except ClientError as error:
            if error_code(error) in _LOST | {"NoSuchKey", "404"}:
                return None
            raise
        etag: str = answer["ETag"]
        return etag

    def _expired_etag(self, where: str) -> str:
        from botocore.exceptions import ClientError

        try:
            found = self._s3.get_object(Bucket=self._bucket, Key=LOCK_KEY)
        except ClientError as error:
            if error_code(error) == "NoSuchKey":
                raise DeployConflict("somebody else deployed just now: try again") from error
            raise
        holder, until_s = _content(found["Body"].read())
        left_s = until_s - self._now_s()
        if left_s > 0:
            raise DeployConflict(
                f"{holder} is deploying: try again when that is done; if it was killed, in "
                f"{left_s:.0f} s, or delete {where}"
            )
        etag: str = found["ETag"]
        return etag

    def _release(self, etag: str) -> None:
        """Not if another has taken it meanwhile."""
        with aws_errors(f"delete s3://{self._bucket}/{LOCK_KEY}"):
            found = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=LOCK_KEY)
            if any(entry["ETag"] == etag for entry in found.get("Contents", ())):
                self._s3.delete_object(Bucket=self._bucket, Key=LOCK_KEY)


def _content(body: bytes) -> tuple[str, float]:
    """What isn't a lock's counts as expired."""
    try:
        data: Any = json.loads(body)
        return str(data["holder"]), float(data["until_s"])
    except (ValueError, KeyError, TypeError):
        return "somebody", 0.0
