"""A bucket in memory that answers as boto3's client does."""

import io
import threading
from typing import Any

from botocore.exceptions import ClientError


def refusal(status: int, code: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "GetObject",
    )


class FakeClient:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.num_requests = 0
        self.error: Exception | None = None
        """What every request ends with."""
        self.may_answer = threading.Event()
        self.may_answer.set()

    def get_object(self, **names: str) -> dict[str, Any]:
        content = self._answer(names)
        return {"Body": io.BytesIO(content), "ContentLength": len(content)}

    def head_object(self, **names: str) -> None:
        self._answer(names)

    def put_object(self, **names: Any) -> None:
        self._check()
        self.objects[names["Key"]] = names["Body"].read()

    def close(self) -> None:
        pass

    def _answer(self, names: dict[str, str]) -> bytes:
        self._check()
        assert names["Bucket"] == "bucket"
        if names["Key"] not in self.objects:
            raise refusal(404, "NoSuchKey")
        return self.objects[names["Key"]]

    def _check(self) -> None:
        self.num_requests += 1
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
