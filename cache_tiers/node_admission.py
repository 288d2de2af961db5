"""The first exchange on a connection of an engine rank: who it is, and the arena's descriptor.

On the bare socket, since asyncio's transports can't carry a descriptor. Must not know what is said
afterwards.
"""

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from cache_tiers.arena import Arena
from cache_tiers.messages import Open, Refused, Welcome
from cache_tiers.peer_user import peer_uid
from wire.frames import HEADER_BYTES, encode_frame

MAX_OPEN_BYTES = 4096


class NotAdmitted(Exception):
    """No engine of ours, or one that can't use the arena; it was told so."""


async def admit(
    sock: socket.socket,
    arena: Arena,
    refusal: Callable[[Open], str | None],
    *,
    uid: int | None = None,
) -> Open:
    """Answer the rank's ``Open``; on return it has the arena. ``refusal`` may say why not. Only
    processes of user ``uid`` (ours) are listened to. Raises ``NotAdmitted``, ``OSError``.
    """
    other_uid = peer_uid(sock)
    if other_uid != (os.geteuid() if uid is None else uid):
        raise _refuse(sock, f"user {other_uid} is not the user of this cache")
    try:
        opening = msgspec.msgpack.decode(await _read_frame(sock), type=Open)
    except msgspec.MsgspecError as error:
        raise _refuse(sock, f"no Open of this version: {error}") from error
    reason = refusal(opening)
    if reason is not None:
        raise _refuse(sock, reason)
    welcome = encode_frame(msgspec.msgpack.encode(Welcome(arena.num_bytes)))
    socket.send_fds(sock, [welcome], [arena.fd])  # the first bytes on this socket: there is room
    return opening


async def _read_frame(sock: socket.socket) -> bytes:
    frame_bytes = int.from_bytes(await _read(sock, HEADER_BYTES), "little")
    if frame_bytes > MAX_OPEN_BYTES:
        raise _refuse(sock, f"a first frame of {frame_bytes} bytes is no Open")
    return await _read(sock, frame_bytes)


async def _read(sock: socket.socket, num_bytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < num_bytes:
        more = await loop.sock_recv(sock, num_bytes - len(received))
        if not more:
            raise NotAdmitted("it left before it said what it is")
        received += more
    return received


def _refuse(sock: socket.socket, reason: str) -> NotAdmitted:
    sock.send(encode_frame(msgspec.msgpack.encode(Refused(reason))))
    return NotAdmitted(reason)
