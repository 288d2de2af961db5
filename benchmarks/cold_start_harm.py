"""An object store and a link that do harm: what ``benchmarks.cold_start`` puts between a node and
where its weights come from.

Both run in threads of this process and count each harm that they have done. Must not know weights.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from benchmarks.object_store import StoreHandler, StoreServer
from cache_tiers.messages import PeerAddress

HOST = "127.0.0.1"
SECRET = b"the secret of a campaign of faults"
_PIECE_BYTES = 1 << 18
_CONNECT_S = 5.0

HarmKind = Literal["none", "cut", "flip", "refuse", "stall"]


class Harm:
    """What is done to bytes on their way, all connections together. Methods may be called from any
    thread."""

    def __init__(self) -> None:
        self.num_done = 0
        self._lock = threading.Lock()
        self._freed = threading.Event()
        self._kind: HarmKind = "none"
        self._num_left = self._bytes_left = 0
        self._stall_s = 0.0

    def begin(
        self, kind: HarmKind, *, after_bytes: int = 0, num: int = 1, stall_s: float = 0.0
    ) -> None:
        """From now on, so often. ``after_bytes`` more have gone through before the first."""
        with self._lock:
            self._kind, self._num_left = kind, num
            self._bytes_left = after_bytes
            self._stall_s = stall_s
            self._freed.clear()

    def stop(self) -> None:
        """No more of it; who is stalled goes on."""
        with self._lock:
            self._kind = "none"
            self._freed.set()

    def refuses(self) -> bool:
        """Whether this request shall be refused."""
        with self._lock:
            return self._kind == "refuse" and self._is_due(0)

    def pass_on(self, piece: bytearray) -> bool:
        """Do to a piece what is due; whether its connection shall end behind it."""
        with self._lock:
            if self._kind in ("none", "refuse") or not self._is_due(len(piece)):
                return False
            kind, stall_s, freed = self._kind, self._stall_s, self._freed
        if kind == "flip":
            middle = len(piece) // 2
            piece[middle] ^= 1 << (middle % 8)
        elif kind == "cut":
            del piece[len(piece) // 2 :]
        elif kind == "stall":
            freed.wait(stall_s)
        return kind == "cut"

    def _is_due(self, num_bytes: int) -> bool:
        self._bytes_left -= num_bytes
        if self._num_left == 0 or self._bytes_left > 0:
            return False
        self._num_left -= 1
        self.num_done += 1
        return True


class HarmfulStore:
    """The files of ``root``, which may be changed at any time; ``harm`` comes to their content."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.harm = Harm()
        store = self

        class Handler(StoreHandler):
            link = None

            def do_GET(self) -> None:  # noqa: N802  as in the library
                if store.harm.refuses():
                    self.send(503, _SLOW_DOWN)
                    return
                self.root = store.root
                super().do_GET()

            def send_file(self, path: Path) -> None:
                begin, end = self.send_file_head(path)
                with path.open("rb") as file:
                    file.seek(begin)
                    while begin < end:
                        piece = bytearray(file.read(min(_PIECE_BYTES, end - begin)))
                        begin += len(piece)
                        is_end = store.harm.pass_on(piece)
                        self.wfile.write(piece)
                        if is_end:
                            self.close_connection = True
                            return

        self._server = StoreServer((HOST, 0), Handler)
        self.url = f"http://{HOST}:{self._server.server_address[1]}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.harm.stop()
        self._server.shutdown()
        self._server.server_close()


_SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


class HarmfulLink:
    """Passes connections on to ``target``; ``harm`` comes to what it answers."""

    def __init__(self, target: Callable[[], PeerAddress]) -> None:
        self.harm = Harm()
        self.is_open = True
        """Else nobody is there."""
        self._target = target
        self._listener = socket.create_server((HOST, 0), backlog=64)
        self.address = PeerAddress(HOST, self._listener.getsockname()[1], SECRET)
        self._open: set[socket.socket] = set()

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.harm.stop()
        self._listener.close()
        self.cut_all()

    def cut_all(self) -> None:
        """As by the end of the process behind it."""
        for one in list(self._open):
            _shut(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if not self.is_open or self.harm.refuses():
                return
            try:
                target = self._target()
                server = socket.create_connection((target.host, target.port), _CONNECT_S)
            except OSError:  # is gone
                return
            with server, self._kept(client, server):
                server.settimeout(None)
                asking = threading.Thread(target=_copy, args=(client, server), daemon=True)
                asking.start()
                self._answer(server, client)
                _shut(client)
                _shut(server)
                asking.join()

    @contextmanager
    def _kept(self, *ends: socket.socket) -> Iterator[None]:
        self._open.update(ends)
        try:
            yield
        finally:
            self._open.difference_update(ends)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(_PIECE_BYTES):
                piece = bytearray(data)
                is_end = self.harm.pass_on(piece)
                client.sendall(piece)
                if is_end:
                    return
        except OSError:  # one of them is gone
            return


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_PIECE_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one of them is gone
        return


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # it was, by the other side
        return
