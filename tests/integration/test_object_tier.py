"""Images in an object store: boto3 as it is, against moto's server and endpoints that are ill."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from moto.server import ThreadedMotoServer

from cache_tiers.config import ObjectStoreConfig
from cache_tiers.object.bucket import ClientLimits
from cache_tiers.object_tier import ObjectLimits, ObjectTier
from cache_tiers.tier import Lookup, TierError
from tests.integration.peer_stand_ins import LAYOUT, blank_images, key_of, sealed_images

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MAX_S = 4.0
"""The time limit of 2 s, and what a busy machine adds."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


async def open_tier(url: str = "s3://bucket/kv") -> ObjectTier:
    return await ObjectTier.open(ObjectStoreConfig(url=url))


async def test_another_node_loads_what_one_has_stored(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    boto3.session.Session().client("s3").create_bucket(Bucket="bucket")
    writer, reader = await open_tier(), await open_tier()
    stored = sealed_images(range(12))
    assert await writer.store(stored) == [True] * 12
    assert await writer.store(stored[:2]) == [True] * 2
    assert await reader.find(LAYOUT, [key_of(11), key_of(12)]) == [Lookup.HIT, Lookup.MISS]
    images = blank_images(range(10, 14))
    assert await reader.load(images) == [True, True, False, False]
    assert [image.memory for image in images[:2]] == [image.memory for image in stored[10:]]
    await writer.close()
    await reader.close()


async def test_a_bucket_that_is_not_there_is_named(
    moto: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
    tier = await open_tier("s3://no-such-bucket/kv")
    with caplog.at_level(logging.WARNING), pytest.raises(TierError, match="correct the bucket"):
        await tier.load(blank_images([1]))
    assert caplog.text.count("s3://no-such-bucket/kv") == 1
    await tier.close()


Respond = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def endpoint(respond: Respond) -> Iterator[str]:
    """An object store that answers as it likes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            respond(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, length: int | None = None
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def refuse(status: int, code: str) -> Respond:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return lambda handler: reply(handler, status, body)


def break_off(handler: BaseHTTPRequestHandler) -> None:
    reply(handler, 200, bytes(5000), length=LAYOUT.image_bytes)
    handler.close_connection = True


def speak_garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(os.urandom(1000))
    handler.close_connection = True


def refuse_in_garbage(handler: BaseHTTPRequestHandler) -> None:
    reply(handler, 400, b"<<<\x00 no xml & never will be")


def answer_in(head: bytes) -> Respond:
    """A head that boto3's parsers don't expect."""

    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 " + head + b"\r\n\r\n" + bytes(LAYOUT.image_bytes))
        handler.close_connection = True

    return respond


def stall(handler: BaseHTTPRequestHandler) -> None:
    with suppress(OSError):
        handler.connection.recv(1)  # until the client gives up


def stall_within(handler: BaseHTTPRequestHandler) -> None:
    reply(handler, 200, bytes(5000), length=LAYOUT.image_bytes)
    stall(handler)


async def check_fails(words: str, caplog: pytest.LogCaptureFixture) -> None:
    """A load raises in time, says why in one line, and the next one does not even ask."""
    tier = await open_tier()
    begin_s = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(TierError, match=words):
        await tier.load(blank_images(range(40)))
    with pytest.raises(TierError, match="failed shortly before"):
        await tier.load(blank_images([1]))
    assert time.monotonic() - begin_s < MAX_S
    lines = [record for record in caplog.records if record.name.startswith("cache_tiers")]
    assert len(lines) == 1
    assert "\n" not in lines[0].getMessage()
    assert all(record.exc_info is None for record in lines)
    assert (tier.stats.num_failures, tier.stats.num_loaded) == (1, 0)
    await tier.close()


@pytest.mark.parametrize(
    ("respond", "words"),
    [
        (refuse(403, "AccessDenied"), "AccessDenied.*check the credentials"),
        (refuse(403, "InvalidAccessKeyId"), "InvalidAccessKeyId"),
        (refuse(503, "SlowDown"), "SlowDown.*fewer requests"),
        (refuse(500, "InternalError"), "InternalError"),
        (break_off, "check the network"),
        (speak_garbage, "check the network"),
        (refuse_in_garbage, "check"),
        (answer_in(b"200 OK"), "does not say how long"),
        (answer_in(b"200 OK\r\nContent-Length: many"), "many.*check the network"),
        (answer_in(b"200 OK\r\nLast-Modified: never"), "never.*check the network"),
        (answer_in(b"301 Moved\r\nContent-Length: 0"), "check"),
        (stall, "not done within|Read timeout"),
        (stall_within, "not done within|Read timeout"),
    ],
)
async def test_an_ill_store_is_a_failure(
    respond: Respond,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with endpoint(respond) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        await check_fails(words, caplog)


async def test_a_port_where_nobody_listens_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    await check_fails("Could not connect.*check the network", caplog)


@pytest.mark.parametrize(
    "respond",
    [
        lambda handler: reply(handler, 200, bytes(sealed_images([7])[0].memory[:-4096])),
        lambda handler: reply(handler, 200, os.urandom(LAYOUT.image_bytes)),
        lambda handler: reply(handler, 200, bytes(sealed_images([7])[0].memory)),
        lambda handler: reply(handler, 200, b""),
    ],
    ids=["truncated", "garbage", "another's image", "empty"],
)
async def test_an_object_is_taken_only_if_it_proves_itself(
    respond: Respond, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with endpoint(respond) as url, caplog.at_level(logging.WARNING):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        tier = await open_tier()
        assert await tier.load(blank_images([1])) == [False]
        assert await tier.load(blank_images([1])) == [False]
        assert (tier.stats.num_unsound, tier.stats.num_failures) == (1, 0)
        assert [record.name for record in caplog.records].count("cache_tiers.object_tier") == 1
        await tier.close()


async def test_a_store_that_was_busy_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([503])

    def be_busy_once(handler: BaseHTTPRequestHandler) -> None:
        if next(answers, None):
            refuse(503, "SlowDown")(handler)
        else:
            reply(handler, 200, bytes(sealed_images([7])[0].memory))

    with endpoint(be_busy_once) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        tier = await open_tier()
        assert await tier.load(blank_images([7])) == [True]
        assert tier.stats.num_failures == 0
        await tier.close()


async def test_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = set()

    def note_port(handler: BaseHTTPRequestHandler) -> None:
        ports.add(handler.client_address[1])
        reply(handler, 200, bytes(sealed_images([7])[0].memory))

    with endpoint(note_port) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        limits = ObjectLimits(ClientLimits(num_connections=2))
        tier = await ObjectTier.open(ObjectStoreConfig(url="s3://bucket/kv"), limits=limits)
        for _ in range(20):
            assert await tier.load(blank_images([7, 7])) == [True, True]
        assert len(ports) <= 2
        await tier.close()


async def test_no_credentials_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    await check_fails("locate credentials", caplog)


async def test_a_configuration_that_boto3_can_not_use_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "not a url")
    with pytest.raises(TierError, match=r"no object store.*AWS_ENDPOINT_URL"):
        await open_tier()
