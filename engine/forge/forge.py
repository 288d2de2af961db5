"""The forge: forks ranks for fronts of its user, tells them how these ended, ends them with them.

Lives on one thread and never computes, so that a child finds no lock taken and no pool of threads
missing. Must not know what a rank does. Linux only.
"""

import contextlib
import logging
import os
import select
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from cache_tiers.peer_user import peer_uid
from engine.forge.messages import (
    MAX_DESCRIPTORS,
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

logger = logging.getLogger(__name__)

_BACKLOG = 128
_NUM_OWN_DESCRIPTORS = 3
"""Standard output and error, and the pipe to the front."""
_THREADS = Path("/proc/self/task")


class RankOrder(NamedTuple):
    """What a forked process is to become."""

    fork: Fork
    descriptors: list[int]
    """Its own."""


@dataclass(slots=True)
class _Rank:
    pid: int
    pidfd: int


@dataclass(slots=True)
class _Visit:
    """One connection; ends with its rank."""

    connection: socket.socket
    is_welcome: bool = False
    rank: _Rank | None = None
    is_gone: bool = field(default=False)
    """The front is; its rank may not be yet."""


class Forge:
    """Call order: ``serve``, then ``close``, in the forge and in each process that it forked."""

    def __init__(self, socket_path: Path, code: str) -> None:
        """Listens at ``socket_path``, whose folder is made if it isn't there, and must be private.

        ``code``: of what was imported. Raises ``ValueError`` and ``OSError``.
        """
        _make_private(socket_path.parent)
        self._code = code
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket_path.unlink(missing_ok=True)  # of a forge that was killed
        self._listener.bind(str(socket_path))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._visits: list[_Visit] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(FromFront).decode

    def serve(self, lifeline: int) -> RankOrder | None:
        """Until ``lifeline`` ends: None; in a forked process it returns at once, with the order."""
        while True:
            ready = self._wait(lifeline)
            if lifeline in ready:
                return None
            for visit in list(self._visits):
                if visit.rank is not None and visit.rank.pidfd in ready:
                    self._reap(visit, visit.rank)
                elif not visit.is_gone and visit.connection.fileno() in ready:
                    order = self._hear(visit)
                    if order is not None:
                        return order
            if self._listener.fileno() in ready:
                self._accept()

    def close(self) -> None:
        """Let go of all descriptors. Ranks that were forked go on."""
        self._listener.close()
        for visit in self._visits:
            visit.connection.close()
            if visit.rank is not None:
                os.close(visit.rank.pidfd)
        self._visits.clear()

    def _wait(self, lifeline: int) -> set[int]:
        poller = select.poll()
        poller.register(lifeline, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        for visit in self._visits:
            if not visit.is_gone:
                poller.register(visit.connection, select.POLLIN)
            if visit.rank is not None:
                poller.register(visit.rank.pidfd, select.POLLIN)
        return {descriptor for descriptor, _ in poller.poll()}

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # it left, or there are too many
            logger.warning("a front could not connect: %s", error)
            return
        if peer_uid(connection) != os.getuid():
            logger.warning("a process of user %d was refused", peer_uid(connection))
            connection.close()
            return
        connection.setblocking(False)
        self._visits.append(_Visit(connection))

    def _hear(self, visit: _Visit) -> RankOrder | None:
        descriptors: list[int] = []
        order: RankOrder | None = None
        try:
            payload, descriptors, flags, _ = socket.recv_fds(
                visit.connection, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            if not payload or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self._leave(visit)
            else:
                order = self._answer(visit, self._decode(payload), descriptors)
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("a front is cut off: %s", error)
            self._leave(visit)
        finally:
            if order is None:
                for descriptor in descriptors:
                    os.close(descriptor)
        return order

    def _answer(
        self, visit: _Visit, message: FromFront, descriptors: list[int]
    ) -> RankOrder | None:
        if isinstance(message, Hello):
            visit.is_welcome = message.code == self._code
            refusal = Refusal("the forge runs another version of the code")
            self._send(visit, Welcome() if visit.is_welcome else refusal)
            return None
        if not visit.is_welcome or visit.rank is not None:
            self._leave(visit)
            return None
        if len(descriptors) < _NUM_OWN_DESCRIPTORS:
            self._send(visit, Refusal("descriptors are missing"))
            return None
        num_threads = len(os.listdir(_THREADS))
        if num_threads > 1:  # locks that they hold would stay locked in a child
            self._send(visit, Refusal(f"the forge has {num_threads} threads"))
            return None
        return self._fork(visit, message, descriptors)

    def _fork(self, visit: _Visit, fork: Fork, descriptors: list[int]) -> RankOrder | None:
        pid = os.fork()
        if pid == 0:  # nothing here may fail: a child that stayed in the loop would be a forge, too
            return RankOrder(fork, descriptors)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # too many are open; nobody could end the rank, or hear of its end
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        visit.rank = _Rank(pid, pidfd)
        self._send(visit, Forked(pid), pidfd)
        return None

    def _send(self, visit: _Visit, message: FromForge, *descriptors: int) -> None:
        try:
            socket.send_fds(visit.connection, [self._encode(message)], descriptors)
        except OSError:  # it left
            self._leave(visit)

    def _leave(self, visit: _Visit) -> None:
        """The front is gone, or made no sense."""
        visit.is_gone = True
        if visit.rank is None:
            self._end(visit)
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(visit.rank.pidfd, signal.SIGKILL)

    def _reap(self, visit: _Visit, rank: _Rank) -> None:
        _, status = os.waitpid(rank.pid, 0)
        os.close(rank.pidfd)
        visit.rank = None
        if not visit.is_gone:
            self._send(visit, Ended(os.waitstatus_to_exitcode(status)))
        if visit in self._visits:
            self._end(visit)

    def _end(self, visit: _Visit) -> None:
        visit.connection.close()
        self._visits.remove(visit)


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = folder.stat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o077:
        raise ValueError(
            f"{folder} is no folder of this user alone: remove it, or name another one "
            "for the forge's socket"
        )
