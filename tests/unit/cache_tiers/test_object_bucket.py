import io
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError, NoCredentialsError

from cache_tiers.object.bucket import Bucket, BucketFailed, WrongSizeError
from tests.unit.cache_tiers.object_fakes import FakeClient, refusal


def fetched(bucket: Bucket, name: str, num_bytes: int) -> bytes | None:
    memory = memoryview(bytearray(num_bytes))
    return bytes(memory) if bucket.get(name, memory, lambda: True) else None


@pytest.mark.parametrize(
    ("url", "key"),
    [("s3://bucket", "a/b"), ("s3://bucket/", "a/b"), ("s3://bucket/x/y/", "x/y/a/b")],
)
def test_names_stand_under_the_prefix(url: str, key: str) -> None:
    client = FakeClient()
    bucket = Bucket(url, client)
    bucket.put("a/b", b"content")
    assert client.objects == {key: b"content"}
    assert bucket.has("a/b")
    assert fetched(bucket, "a/b", 7) == b"content"


def test_an_object_that_is_not_there_is_no_failure() -> None:
    bucket = Bucket("s3://bucket", FakeClient())
    assert fetched(bucket, "a", 7) is None
    assert not bucket.has("a")


@pytest.mark.parametrize("num_bytes", [6, 8])
def test_an_object_of_another_size_is_not_read(num_bytes: int) -> None:
    bucket = Bucket("s3://bucket", FakeClient())
    bucket.put("a", b"content")
    with pytest.raises(WrongSizeError):
        fetched(bucket, "a", num_bytes)


def test_an_answer_that_ends_too_early_is_a_failure() -> None:
    class Short(FakeClient):
        def get_object(self, **names: str) -> dict[str, Any]:
            return {"Body": io.BytesIO(b"cont"), "ContentLength": 7}

    with pytest.raises(BucketFailed, match="ended too early"):
        fetched(Bucket("s3://bucket", Short()), "a", 7)


def test_an_answer_without_a_length_is_a_failure() -> None:
    class Silent(FakeClient):
        def get_object(self, **names: str) -> dict[str, Any]:
            return {"Body": io.BytesIO(b"content")}

    with pytest.raises(BucketFailed, match="how long"):
        fetched(Bucket("s3://bucket", Silent()), "a", 7)


def test_what_nobody_wants_any_more_is_not_read_to_the_end() -> None:
    memory = memoryview(bytearray(1 << 20))
    bucket = Bucket("s3://bucket", FakeClient())
    bucket.put("a", b"x" * len(memory))
    is_wanted = iter((True, True, False))
    with pytest.raises(BucketFailed, match="too slow"):
        bucket.get("a", memory, lambda: next(is_wanted))
    assert 0 < bytes(memory).count(b"x") < len(memory)


def test_a_store_that_knows_no_such_object_when_it_is_given_one_has_failed() -> None:
    client = FakeClient()
    client.error = refusal(404, "NoSuchKey")
    with pytest.raises(BucketFailed, match="NoSuchKey"):
        Bucket("s3://bucket", client).put("a", b"content")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (refusal(403, "AccessDenied"), "AccessDenied.*check the credentials"),
        (refusal(404, "NoSuchBucket"), "NoSuchBucket.*correct the bucket"),
        (refusal(503, "SlowDown"), "SlowDown.*fewer requests"),
        (refusal(500, "InternalError"), "check AWS_ENDPOINT_URL"),
        (NoCredentialsError(), "locate credentials.*check the network"),
        (ConnectTimeoutError(endpoint_url="http://x"), "timeout.*check the network"),
        (OSError("no\nroute"), "no route"),
        (ValueError("Invalid timestamp"), "Invalid timestamp.*check the network"),
        (RecursionError("a redirection to itself"), "itself.*check the network"),
    ],
)
def test_a_fault_becomes_one_line_with_a_remedy(error: Exception, words: str) -> None:
    client = FakeClient()
    client.error = error
    bucket = Bucket("s3://bucket", client)
    calls: tuple[Callable[[], object], ...] = (
        lambda: fetched(bucket, "a", 7),
        lambda: bucket.put("a", b"x"),
    )
    for call in calls:
        with pytest.raises(BucketFailed, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 500
