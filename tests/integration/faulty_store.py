"""A folder over S3's HTTP that fails as a test tells it: refusals, storms, stalls, flipped bits."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_PIECE_BYTES = 1 << 16


@dataclass
class FaultyStore:
    """Change a field at any time."""

    folder: Path
    refuse_with: int | None = None
    """Status of every answer."""
    busy_times: int = 0
    """So many reads of objects are answered with SlowDown."""
    stall_times: int = 0
    """So many answers break off in silence, until the client gives up."""
    cut_times: int = 0
    """So many answers end too early."""
    flip_in: str | None = None
    """A bit of this file is another one on the way."""
    after_listing: Callable[[], object] = lambda: None
    piece_pause_s: float = 0.0
    num_requests: int = 0
    sent_bytes: int = 0
    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str) -> bool:
        """Whether this request is one of those that the field ``name`` counts."""
        with self._lock:
            left: int = getattr(self, name)
            if left:
                setattr(self, name, left - 1)
            return left > 0

    def count(self, num_bytes: int) -> None:
        with self._lock:
            self.sent_bytes += num_bytes


@contextmanager
def faulty_store(folder: Path) -> Iterator[FaultyStore]:
    store = FaultyStore(folder)

    class Handler(_Handler):
        faults = store

    server = _Server(("127.0.0.1", 0), Handler)
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield store
    finally:
        store.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: FaultyStore

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.faults.num_requests += 1
        path = self.faults.folder / url.path.rsplit("/", 1)[-1]
        if self.faults.refuse_with is not None:
            self._refuse(self.faults.refuse_with, "ExpiredToken")
        elif "list-type" in (query := parse_qs(url.query, keep_blank_values=True)):
            self._list(query["prefix"][0])
            self.faults.after_listing()
        elif self.faults.take("busy_times"):
            self._refuse(503, "SlowDown")
        elif self.headers.get("If-Match") not in (None, _etag(path)):
            self._refuse(412, "PreconditionFailed")
        else:
            self._send_range(path)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as in the library
        pass

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _list(self, prefix: str) -> None:
        objects = "".join(
            f"<Contents><Key>{escape(prefix + path.name)}</Key><Size>{path.stat().st_size}</Size>"
            f"<ETag>{escape(_etag(path))}</ETag></Contents>"
            for path in sorted(self.faults.folder.iterdir())
        )
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"
        self._send(200, page.encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_range(self, path: Path) -> None:
        begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        content = bytearray(path.read_bytes()[begin : end + 1])
        if self.faults.flip_in == path.name:
            content[-1] ^= 1
        is_cut = self.faults.take("cut_times")
        stalls = self.faults.take("stall_times")
        self.send_response(206)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for position in range(0, len(content), _PIECE_BYTES):
            if (is_cut or stalls) and position >= len(content) // 2:
                if stalls:
                    self.faults.released.wait(30)
                self.close_connection = True
                return
            self.wfile.write(content[position : position + _PIECE_BYTES])
            self.faults.count(min(_PIECE_BYTES, len(content) - position))
            self.faults.released.wait(self.faults.piece_pause_s)


def _etag(path: Path) -> str:
    stat = path.stat()
    return f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'
