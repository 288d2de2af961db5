"""The front's side of the forge: asks for a rank, and holds on to it.

Blocks for a second at most. Imports no torch.
"""

import contextlib
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.errors import EngineError
from engine.forge.code import this_code
from engine.forge.messages import (
    MAX_MESSAGE_BYTES,
    Ended,
    Fork,
    Forked,
    FromForge,
    FromFront,
    Hello,
    Refusal,
    Welcome,
)

ANSWER_TIMEOUT_S = 1.0
_STATUS_TIMEOUT_S = 0.2
"""A forge that lives says at once how a rank ended."""
_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FromForge).decode

_Answer = TypeVar("_Answer", Welcome, Forked)


class ForgeUnavailable(EngineError):
    """There is no forge, or not one that can start this rank; one line that says why."""


class ForgedProcess:
    """A rank that the forge forked, and kills when this process ends."""

    def __init__(self, pid: int, pidfd: int, connection: socket.socket) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._connection = connection
        self._has_ended = False
        self._exit_code: int | None = None

    @property
    def is_running(self) -> bool:
        if not self._has_ended and _is_readable(self._pidfd, 0):
            self._has_ended = True
            self._exit_code = self._read_exit_code()
            os.close(self._pidfd)
            self._connection.close()
        return not self._has_ended

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and if the forge is gone, who alone could know."""
        return self._exit_code if not self.is_running else None

    def kill(self) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _read_exit_code(self) -> int | None:
        if not _is_readable(self._connection.fileno(), _STATUS_TIMEOUT_S):
            return None
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            message = _decode(self._connection.recv(MAX_MESSAGE_BYTES))
            return message.exit_code if isinstance(message, Ended) else None
        return None


def fork_rank(
    forge: Path,
    arguments: Sequence[str],
    descriptors: Sequence[int],
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> ForgedProcess:
    """Let the forge at this socket run ``engine.rank`` with ``arguments``, the environment of this
    process, its standard output and error, and ``descriptors``: the pipe to it, then links.

    Raises ``ForgeUnavailable``.
    """
    if sys.platform != "linux":
        raise ForgeUnavailable("a forge needs Linux")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(forge))
        _send(connection, Hello(this_code()))
        _receive(connection, Welcome)
        # What a child inherits, no value is read here.
        fork = Fork(list(arguments), dict(os.environb))
        _send(connection, fork, [_STANDARD_OUTPUT, _STANDARD_ERROR, *descriptors])
        forked, [pidfd] = _receive(connection, Forked)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        connection.close()
        raise ForgeUnavailable(f"the forge at {forge} gives no answer ({error})") from error
    except ForgeUnavailable:
        connection.close()
        raise
    return ForgedProcess(forked.pid, pidfd, connection)


def _send(connection: socket.socket, message: FromFront, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(connection, [_encode(message)], descriptors)


def _receive(connection: socket.socket, kind: type[_Answer]) -> tuple[_Answer, list[int]]:
    payload, descriptors, _, _ = socket.recv_fds(
        connection, MAX_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
    )
    if not payload:
        raise ForgeUnavailable("the forge closed the connection")
    message = _decode(payload)
    if isinstance(message, Refusal):
        raise ForgeUnavailable(message.reason)
    if not isinstance(message, kind):
        raise ForgeUnavailable(f"the forge answers {message}, not with {kind.__name__}")
    return message, descriptors


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(1000 * timeout_s))
