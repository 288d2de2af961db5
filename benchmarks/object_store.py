"""The least of an object store that a pull needs, as fast as the kernel: a folder over S3's HTTP.

Answers ListObjectsV2 of the whole folder and ranged GETs by sendfile, without authentication. For
benchmarks on loopback, where a complete imitation of S3 would be what is measured.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_START_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 18
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@contextmanager
def object_store(folder: Path, *, bytes_per_s: float | None = None) -> Iterator[str]:
    """Serve the files of ``folder`` in a process of their own; yields the endpoint's URL.

    ``bytes_per_s`` is what all connections share, as they do a network; None: unlimited.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(folder, bytes_per_s, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(_START_TIMEOUT_S):
            raise RuntimeError("the object store did not start")
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


def _serve(folder: Path, bytes_per_s: float | None, connection: Connection) -> None:
    class Handler(_Handler):
        root = folder
        link = None if bytes_per_s is None else Link(bytes_per_s)

    server = _Server(("127.0.0.1", 0), Handler)
    connection.send(server.server_address[1])
    server.serve_forever()


class Link:
    """A network of a given bandwidth: whoever sends waits for its turn."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = time.monotonic()
        self._lock = threading.Lock()

    def pass_through(self, num_bytes: int) -> None:
        with self._lock:
            begin_s = max(self._free_at_s, time.monotonic())
            self._free_at_s = begin_s + num_bytes / self._bytes_per_s
            wait_s = self._free_at_s - time.monotonic()
        time.sleep(max(0.0, wait_s))


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    link: Link | None

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = url.path.rsplit("/", 1)[-1]
        query = parse_qs(url.query, keep_blank_values=True)
        if "list-type" in query:
            self._list(query["prefix"][0])
        elif (self.root / name).is_file():
            self._send_file(self.root / name)
        else:
            self._send(404, b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as in the library
        pass

    def _list(self, prefix: str) -> None:
        objects = "".join(
            f"<Contents><Key>{escape(prefix + path.name)}</Key><Size>{path.stat().st_size}</Size>"
            f"<ETag>{_etag(path)}</ETag></Contents>"
            for path in sorted(self.root.iterdir())
        )
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"
        self._send(200, page.encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, path: Path) -> None:
        size = path.stat().st_size
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        begin, end = (int(match[1]), int(match[2]) + 1) if match else (0, size)
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", _etag(path))
        if match:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        self.wfile.flush()
        with path.open("rb") as file:
            while begin < end:
                length = min(_PIECE_BYTES, end - begin) if self.link else end - begin
                num_sent = os.sendfile(self.connection.fileno(), file.fileno(), begin, length)
                if self.link:
                    self.link.pass_through(num_sent)
                begin += num_sent


def _etag(path: Path) -> str:
    stat = path.stat()
    return f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'
