"""``python -m engine.weights.source_process``: reads one model for the process that started it.

The first frame on the socket ``--fd`` is ``Bring``; the last one that it sends is ``Kept`` or
``Failed``. It may be killed at any moment, and dies with its parent. Must not know what is done
with the weights.
"""

import argparse
import ctypes
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cache_tiers.weights.errors import NoRoom, OriginFailed, WrongWeights
from cache_tiers.weights.messages import WeightFile
from engine.checkpoints.errors import (
    CheckpointError,
    HashMismatch,
    StoreUnavailable,
    UnsupportedCheckpoint,
)
from engine.weights.source_job import Movement, SourceJob
from engine.weights.source_messages import (
    Bring,
    Failed,
    Found,
    FromChild,
    Kept,
    Moved,
    Targets,
    ToChild,
)
from wire.errors import ConnectionClosed
from wire.pipe import SyncPipe

_NICENESS = 5
"""Beside ranks that compute, a download waits."""
_SAYS_EVERY_S = 0.1
_FIRST_FRAME_TIMEOUT_S = 30.0
_LAST_WORDS_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


class _Parent:
    """The pipe, for the thread that works and the one that says how far it is."""

    def __init__(self, pipe: SyncPipe) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def say(self, message: FromChild) -> None:
        with self._lock:
            self._pipe.send(msgspec.msgpack.encode(message))

    def hear(self, timeout_s: float) -> ToChild | None:
        with self._lock:
            frames = self._pipe.poll(timeout_s)
        return msgspec.msgpack.decode(frames[0], type=ToChild) if frames else None

    def ask(self, files: Sequence[WeightFile]) -> list[Path]:
        """Where to write them."""
        self.say(Found(tuple(files)))
        while True:
            answer = self.hear(_SAYS_EVERY_S)
            if isinstance(answer, Targets):
                return [Path(path) for path in answer.paths]

    def say_last(self, message: FromChild) -> None:
        self.say(message)
        with self._lock:
            self._pipe.flush(_LAST_WORDS_TIMEOUT_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.weights.source_process")
    parser.add_argument("--fd", type=int, required=True, help="socket to the parent")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="that relative paths are of")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != arguments.parent_pid:  # it died before the call
        return 0
    os.chdir(arguments.folder)
    os.nice(_NICENESS)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    parent = _Parent(SyncPipe(socket.socket(fileno=arguments.fd)))
    try:
        bring = parent.hear(_FIRST_FRAME_TIMEOUT_S)
        assert isinstance(bring, Bring)
        parent.say_last(_work(bring, parent))
    except ConnectionClosed:
        return 0  # nobody wants it any more
    return 0


def _work(bring: Bring, parent: _Parent) -> Kept | Failed:
    movement = Movement()
    is_done = threading.Event()
    teller = threading.Thread(target=_tell, args=(parent, movement, is_done), daemon=True)
    teller.start()
    try:
        SourceJob(bring, movement).run(parent.ask, parent.say)
        return Kept()
    except (CheckpointError, OSError) as error:
        return _failure(error, bring)
    finally:
        is_done.set()
        teller.join()


def _tell(parent: _Parent, movement: Movement, is_done: threading.Event) -> None:
    """Say how far it is, until ``is_done``; end the process when nobody listens."""
    while not is_done.wait(_SAYS_EVERY_S):
        memory = movement.memory
        positions = None if memory is None else memory.positions
        try:
            parent.say(Moved(movement.num_done_bytes, movement.num_bytes, positions))
        except ConnectionClosed:
            os._exit(0)  # readers of a source that stalls would keep it alive


def _failure(error: CheckpointError | OSError, bring: Bring) -> Failed:
    """In one line, whatever it was."""
    match error:
        case StoreUnavailable():
            kind: type[Exception] = NoRoom
        case HashMismatch() | UnsupportedCheckpoint():
            kind = WrongWeights
        case OSError() if error.errno in _FULL:
            kind = NoRoom
        case _:
            kind = OriginFailed
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        text = f"cannot bring {bring.order.model} from {bring.order.source}: {text}"
    return Failed(kind.__name__, text)


if __name__ == "__main__":
    sys.exit(main())
