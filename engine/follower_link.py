"""Rank 0's end of the socket to one other rank. Blocking; must not know plans."""

import socket
import time
from typing import TypeVar

import msgspec

from engine.rank_messages import FromFollower, Joined, KvDone, Transferred
from wire.errors import FrameTooLargeError
from wire.frames import FrameDecoder

ANSWER_TIMEOUT_S = 30.0
"""A rank that moves KV also computes, as long as rank 0 does; one that is stuck ends the group."""
_MAX_ANSWER_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024

Answer = TypeVar("Answer", Joined, KvDone, Transferred)


class RanksOutOfStep(BaseException):
    """A rank did not carry out a plan, so the others wait in a collective or have other KV.

    Not an ``Exception``: the engine would end all requests with an error and go on, while the end
    of the process lets them move to another replica. Out of memory is no exception to that.
    """


class FollowerLink:
    """Owner of ``link``."""

    def __init__(self, rank: int, link: socket.socket, *, answer_timeout_s: float) -> None:
        link.setblocking(True)
        self.rank = rank
        self._link = link
        self._answer_timeout_s = answer_timeout_s
        self._frames = FrameDecoder(_MAX_ANSWER_BYTES)
        self._decode = msgspec.msgpack.Decoder(FromFollower).decode

    def send(self, frame: bytes) -> None:
        """Waits while the rank does not keep up. Raises ``RanksOutOfStep`` when it is gone."""
        try:
            self._link.sendall(frame)
        except OSError as error:
            raise RanksOutOfStep(f"rank {self.rank} takes no plans any more: {error}") from error

    def receive(self, kind: type[Answer]) -> Answer:
        """The answer to what was sent last. Raises ``RanksOutOfStep`` when there is none in time,
        or another one.
        """
        deadline_s = time.monotonic() + self._answer_timeout_s
        try:
            while not (payload := self._frames.next_frame()):
                self._frames.feed(self._read(deadline_s))
            answer = self._decode(payload)
        except (OSError, FrameTooLargeError, msgspec.MsgspecError) as error:
            raise RanksOutOfStep(f"rank {self.rank} gives no answer: {error}") from error
        if not isinstance(answer, kind):
            raise RanksOutOfStep(f"rank {self.rank} answers {answer}, not with {kind.__name__}")
        return answer

    def close(self) -> None:
        self._link.close()

    def _read(self, deadline_s: float) -> bytes:
        self._link.settimeout(max(0.001, deadline_s - time.monotonic()))
        try:
            data = self._link.recv(_READ_BYTES)
        finally:
            self._link.settimeout(None)
        if not data:
            raise ConnectionResetError("its end is closed")
        return data
