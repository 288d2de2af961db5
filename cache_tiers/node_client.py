"""An engine rank's way to its node's cache: dial, say what one is, map the arena.

Without an event loop: the rank's step loop has none. Must not know what is said afterwards.
"""

import os
import socket
from pathlib import Path
from typing import NamedTuple

import msgspec

from cache_tiers.arena import ArenaError, ArenaMap
from cache_tiers.messages import NodeToEngine, Open, Refused, Welcome
from cache_tiers.peer_user import peer_uid
from cache_tiers.tier import TierError
from wire.frames import HEADER_BYTES, encode_frame
from wire.pipe import SyncPipe

_MAX_ANSWER_BYTES = 64 * 1024


class Attachment(NamedTuple):
    """What a rank has of its node's cache; both are the rank's to close."""

    pipe: SyncPipe
    """Ranks other than 0 have nothing to say and may close it."""
    arena: ArenaMap


def connect(
    socket_path: Path, opening: Open, timeout_s: float, *, uid: int | None = None
) -> Attachment:
    """Only to a process of user ``uid`` (ours): anybody may listen where a cache is yet to come.
    Raises ``TierError`` with the reason: there is no cache, it does not answer, it refuses.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(str(socket_path))
        other_uid = peer_uid(sock)
        if other_uid != (os.geteuid() if uid is None else uid):
            raise TierError(f"user {other_uid} listens there, who is not this engine's")
        sock.sendall(encode_frame(msgspec.msgpack.encode(opening)))
        arena = _map_arena(sock)
        return Attachment(SyncPipe(sock), arena)  # last: it makes the socket non-blocking
    except (OSError, ArenaError, TierError, msgspec.MsgspecError) as error:
        sock.close()
        raise TierError(f"no node cache at {socket_path}: {error}") from error


def _map_arena(sock: socket.socket) -> ArenaMap:
    header, fds, _, _ = socket.recv_fds(sock, HEADER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
    try:
        frame_bytes = int.from_bytes(header + _read(sock, HEADER_BYTES - len(header)), "little")
        if frame_bytes > _MAX_ANSWER_BYTES:
            raise TierError(f"an answer of {frame_bytes} bytes is none of a node cache")
        answer = msgspec.msgpack.decode(_read(sock, frame_bytes), type=NodeToEngine)
        if isinstance(answer, Refused):
            raise TierError(f"it refused: {answer.reason}")
        if not isinstance(answer, Welcome) or not fds:
            raise TierError("it answered without its memory: is it another version?")
        return ArenaMap(fds[0], answer.arena_bytes)
    finally:
        for fd in fds:
            os.close(fd)


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    received = b""
    while len(received) < num_bytes:
        more = sock.recv(num_bytes - len(received))
        if not more:
            raise TierError("it closed the connection")
        received += more
    return received
