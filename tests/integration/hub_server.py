"""The least of a Hugging Face hub: what huggingface_hub asks for, from a folder, on loopback.

The content of files comes from a second address, as the hub's comes from its storage.
"""

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Hub:
    """One repository, ``org/model``; change a field and the next answer differs."""

    folder: Path
    commit: str = "c" * 40
    url: str = ""
    gated: bool = False
    token: str | None = None
    """Asked for, if set; the storage must never see it."""
    num_failures: int = 0
    """So many reads of content break off half way."""
    delay_s: float = 0.0
    """Before each piece of content."""
    expires: bool = False
    """Signed addresses work once."""
    damaged: str | None = None
    """A file whose content isn't what its hash says."""
    sent_bytes: Counter[str] = field(default_factory=Counter)
    storage_tokens: list[str] = field(default_factory=list)
    signatures: set[str] = field(default_factory=set)
    num_signed: int = 0

    def path_of(self, name: str) -> Path | None:
        path = self.folder / name
        return path if path.is_file() else None


@contextmanager
def running_hub(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no news."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        if path.startswith("/storage/"):
            self._send_content(path.removeprefix("/storage/"))
            return
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, b"{}")
            return
        if path.startswith("/api/models/org/model/revision/"):
            self._send_info(path.rsplit("/", 1)[-1])
        elif path.startswith("/org/model/resolve/"):
            self._redirect(path.removeprefix("/org/model/resolve/").partition("/")[2])
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send_info(self, revision: str) -> None:
        hub = self.hub
        if hub.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
            return
        if revision not in ("main", "v1", hub.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = []
        for path in sorted(path for path in hub.folder.rglob("*") if path.is_file()):
            entry: dict[str, object] = {
                "rfilename": str(path.relative_to(hub.folder)),
                "size": path.stat().st_size,
            }
            if path.suffix in (".safetensors", ".gguf"):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": entry["size"], "pointerSize": 134}
            siblings.append(entry)
        info = {"id": "org/model", "sha": hub.commit, "siblings": siblings}
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _redirect(self, name: str) -> None:
        path = self.hub.path_of(name)
        if path is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        self.hub.num_signed += 1
        signature = str(self.hub.num_signed)
        self.hub.signatures.add(signature)
        storage = self.hub.url.replace("127.0.0.1", "localhost")  # another host to a client
        headers = {
            "Location": f"{storage}/storage/{name}?{signature}",
            "X-Repo-Commit": self.hub.commit,
            "X-Linked-Size": str(path.stat().st_size),
            "X-Linked-ETag": '"etag"',
        }
        self._send(302, b"", headers)

    def _send_content(self, name: str) -> None:
        hub = self.hub
        if "Authorization" in self.headers:
            hub.storage_tokens.append(self.headers["Authorization"])
        signature = urlsplit(self.path).query
        if signature not in hub.signatures:
            self._send(403, b"")
            return
        if hub.expires:
            hub.signatures.discard(signature)
        path = hub.path_of(name)
        assert path is not None
        match = _RANGE.fullmatch(self.headers["Range"])
        assert match is not None
        with path.open("rb") as file:
            file.seek(int(match[1]))
            body = file.read(int(match[2]) + 1 - int(match[1]))
        if name == hub.damaged:
            body = bytes(reversed(body))
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if hub.num_failures:
            hub.num_failures -= 1
            body = body[: len(body) // 2]
            self.close_connection = True
        for begin in range(0, len(body), 1 << 16):
            time.sleep(hub.delay_s)
            piece = body[begin : begin + (1 << 16)]
            self.wfile.write(piece)
            hub.sent_bytes[name] += len(piece)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
