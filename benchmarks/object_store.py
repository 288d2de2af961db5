"""The least of an object store that a pull needs, as fast as the kernel: a folder over S3's HTTP.

Answers ListObjectsV2 of the whole folder and ranged GETs by sendfile, without authentication. For
benchmarks on loopback, where a complete imitation of S3 would be what is measured.
"""

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from benchmarks.machine import REPOSITORY

BUCKET = "bucket"
_START_TIMEOUT_S = 30.0
_PIECE_BYTES = 1 << 18
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@contextmanager
def object_store(
    folder: Path,
    *,
    bytes_per_s: float | None = None,
    host: str = "127.0.0.1",
    run_by: Sequence[str] = (),
) -> Iterator[str]:
    """Serve the files of ``folder`` in a process of their own; yields the endpoint's URL.

    ``bytes_per_s`` is what all connections share, as they do a network; None: unlimited. ``run_by``
    is a command that runs the process elsewhere, such as in another network namespace.
    """
    rate = [] if bytes_per_s is None else [repr(bytes_per_s)]
    command = [*run_by, sys.executable, "-m", __name__, str(folder), host, *rate]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
        port = process.stdout.readline() if readable else b""
        if not port:
            raise RuntimeError("the object store did not start")
        yield f"http://{host}:{int(port)}"
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    """In the store's process, which ends with its parent."""
    folder, host, *rate = sys.argv[1:]

    class Handler(StoreHandler):
        root = Path(folder)
        link = Link(float(rate[0])) if rate else None

    server = StoreServer((host, 0), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


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


class StoreServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class StoreHandler(BaseHTTPRequestHandler):
    """Of one connection; a subclass says ``root`` and ``link``."""

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
            self.send_file(self.root / name)
        else:
            self.send(404, b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as in the library
        pass

    def _list(self, prefix: str) -> None:
        objects = "".join(
            f"<Contents><Key>{escape(prefix + path.name)}</Key><Size>{path.stat().st_size}</Size>"
            f"<ETag>{_etag(path)}</ETag></Contents>"
            for path in sorted(self.root.iterdir())
        )
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"
        self.send(200, page.encode())

    def send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, path: Path) -> None:
        """What is asked of it: all, or a range."""
        begin, end = self.send_file_head(path)
        with path.open("rb") as file:
            while begin < end:
                length = min(_PIECE_BYTES, end - begin) if self.link else end - begin
                num_sent = os.sendfile(self.connection.fileno(), file.fileno(), begin, length)
                if self.link:
                    self.link.pass_through(num_sent)
                begin += num_sent

    def send_file_head(self, path: Path) -> tuple[int, int]:
        """All but the content; where that begins and ends."""
        size = path.stat().st_size
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        begin, end = (int(match[1]), min(size, int(match[2]) + 1)) if match else (0, size)
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", _etag(path))
        if match:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        self.wfile.flush()
        return begin, end


def _etag(path: Path) -> str:
    stat = path.stat()
    return f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'


if __name__ == "__main__":
    main()
