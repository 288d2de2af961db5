"""Serve's REST API as a small HTTP server: takes what it is given, and says that it runs."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

TOKEN = "of-the-cluster"  # not a secret
PATH = "/api/serve/applications/"


@dataclass(slots=True)
class FakeServe:
    """What the test sets and sees."""

    address: str = ""
    token: str | None = TOKEN
    puts: list[dict[str, Any]] = field(default_factory=list)
    refusal: str | None = None
    """Why the next file is not taken."""
    broken_status: int | None = None
    """In place of every answer."""
    statuses: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Status and message of applications that don't run."""

    def answer(self, method: str, path: str, auth: str | None, body: bytes) -> tuple[int, str]:
        if self.broken_status is not None:
            return self.broken_status, "broken"
        if path != PATH:
            return 404, "404: Not Found"
        if self.token is not None and auth is None:
            return 401, "Unauthorized: Missing authentication token"
        if self.token is not None and auth != f"Bearer {self.token}":
            return 403, "Forbidden: Invalid authentication token"
        if method == "GET":
            return 200, json.dumps({"applications": self.applications(), "proxies": {}})
        if self.refusal is not None:
            return 400, self.refusal
        self.puts.append(json.loads(body))
        return 200, ""

    def applications(self) -> dict[str, Any]:
        names = [each["name"] for each in self.puts[-1]["applications"]] if self.puts else []
        return {name: self._application(name) for name in names}

    def _application(self, name: str) -> dict[str, Any]:
        status, message = self.statuses.get(name, ("RUNNING", ""))
        replica = {"replica_id": "r1", "state": "RUNNING", "node_ip": "10.40.0.7"}
        replicas = [replica] if status == "RUNNING" else []
        deployment = {"status": "HEALTHY", "target_num_replicas": 1, "replicas": replicas}
        return {
            "name": name,
            "status": status,
            "message": message,
            "deployments": {"D": deployment},
        }


@contextmanager
def fake_serve() -> Iterator[FakeServe]:
    """Listens on loopback until the end."""
    fake = FakeServe()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_PUT(self) -> None:
            self._answer("PUT")

        def _answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, text = fake.answer(method, self.path, self.headers.get("Authorization"), body)
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
