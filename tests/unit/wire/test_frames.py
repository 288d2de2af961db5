from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import FrameTooLargeError
from wire.frames import HEARTBEAT, FrameDecoder, encode_frame


@given(payloads=st.lists(st.binary(max_size=300)), cuts=st.lists(st.integers(0, 4000)))
def test_any_chunking_of_the_stream_gives_the_same_frames(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(encode_frame, payloads))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = FrameDecoder()
    received: list[bytes] = []
    for start, end in pairwise(edges):
        decoder.feed(stream[start:end])
        received += decoder.frames()
    assert received == [payload for payload in payloads if payload]
    assert decoder.next_frame() is None


def test_a_heartbeat_is_an_empty_frame() -> None:
    decoder = FrameDecoder()
    decoder.feed(HEARTBEAT)
    assert decoder.next_frame() == b""
    assert decoder.next_frame() is None


def test_an_announced_length_over_the_limit_fails_before_the_payload_comes() -> None:
    decoder = FrameDecoder(max_frame_bytes=10)
    decoder.feed((11).to_bytes(4, "little"))
    with pytest.raises(FrameTooLargeError, match="11 bytes is over the limit of 10"):
        decoder.next_frame()


def test_a_payload_over_the_limit_is_not_encoded() -> None:
    assert encode_frame(bytes(10), max_frame_bytes=10)
    with pytest.raises(FrameTooLargeError):
        encode_frame(bytes(11), max_frame_bytes=10)


def test_a_flood_of_heartbeats_leaves_nothing_behind() -> None:
    decoder = FrameDecoder()
    decoder.feed(HEARTBEAT * 10_000 + encode_frame(b"here") + HEARTBEAT * 10_000)
    assert decoder.frames() == [b"here"]
    assert decoder.next_frame() is None


def test_a_frame_that_never_ends_is_never_handed_out() -> None:
    decoder = FrameDecoder(1000)
    decoder.feed(encode_frame(bytes(1000))[:-1])
    assert decoder.frames() == []
