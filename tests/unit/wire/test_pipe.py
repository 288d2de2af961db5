import socket
import time
from collections.abc import Iterator

import pytest

from wire.errors import ConnectionClosed
from wire.frames import encode_frame
from wire.pipe import SyncPipe, wait_any


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


Pair = tuple[socket.socket, socket.socket]


def test_frames_arrive_in_order_and_heartbeats_do_not(sockets: Pair) -> None:
    left, right = map(SyncPipe, sockets)
    left.send(b"one")
    left.send_heartbeat()
    left.send(b"two")
    assert right.poll(1) == [b"one", b"two"]
    left.close()
    right.close()


def test_poll_without_anything_to_read_waits_for_the_timeout_only(sockets: Pair) -> None:
    pipe = SyncPipe(sockets[0])
    start_s = time.monotonic()
    assert pipe.poll(0) == []
    assert time.monotonic() - start_s < 0.02
    assert pipe.poll(0.05) == []
    assert time.monotonic() - start_s >= 0.05
    pipe.close()


def test_a_large_frame_crosses_although_the_kernel_takes_only_a_part_at_once(sockets: Pair) -> None:
    left, right = map(SyncPipe, sockets)
    payload = bytes(range(256)) * 20_000  # 5 MB
    left.send(payload)
    assert left.queued_bytes > 0
    received: list[bytes] = []
    while not received:
        left.poll(0)
        received = right.poll(0)
    assert received == [payload]
    assert left.queued_bytes == 0
    left.close()
    right.close()


def test_a_peer_that_does_not_read_is_an_error_not_a_wait(sockets: Pair) -> None:
    pipe = SyncPipe(sockets[0], max_send_queue_bytes=1_000_000)
    while pipe.queued_bytes < 900_000:
        pipe.send(bytes(90_000))
    with pytest.raises(ConnectionClosed, match="does not keep up"):
        pipe.send(bytes(100_000))
    pipe.close()


def test_the_end_of_the_stream_is_told_after_the_last_frame(sockets: Pair) -> None:
    pipe = SyncPipe(sockets[0])
    sockets[1].sendall(encode_frame(b"last"))
    sockets[1].close()
    assert pipe.poll(1) == [b"last"]
    with pytest.raises(ConnectionClosed):
        pipe.poll(1)
    pipe.close()


def test_half_a_frame_does_not_end_the_wait_for_the_whole(sockets: Pair) -> None:
    left, right = sockets
    pipe = SyncPipe(right)
    frame = encode_frame(b"whole")
    left.send(frame[:6])
    started_s = time.monotonic()
    assert pipe.poll(0.05) == []
    assert time.monotonic() - started_s >= 0.05
    left.send(frame[6:])
    assert pipe.poll(1) == [b"whole"]
    pipe.close()


def test_wait_any_ends_with_the_first_pipe_that_has_something(sockets: Pair) -> None:
    left, right = map(SyncPipe, sockets)
    quiet, other = map(SyncPipe, socket.socketpair())
    start_s = time.monotonic()
    wait_any((right, quiet), 0.05)
    assert time.monotonic() - start_s >= 0.05
    left.send(b"one")
    wait_any((quiet, right), 5.0)
    assert time.monotonic() - start_s < 1.0
    assert right.poll(0) == [b"one"]
    for pipe in (left, right, quiet, other):
        pipe.close()


def test_wait_any_ends_when_what_was_queued_can_leave(sockets: Pair) -> None:
    left, right = map(SyncPipe, sockets)
    while not left.queued_bytes:
        left.send(bytes(100_000))
    wait_any((left,), 0.0)
    right.poll(0)
    start_s = time.monotonic()
    wait_any((left,), 5.0)
    assert time.monotonic() - start_s < 1.0
    left.close()
    right.close()
