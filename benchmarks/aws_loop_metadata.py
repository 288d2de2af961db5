"""A metadata service of an EC2 instance on loopback: tokens, and what a test puts there."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Metadata:
    """What the service says; a test changes it while it runs."""

    url: str = ""
    values: dict[str, str] = field(default_factory=dict)
    """By path below `meta-data/`; others are 404."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Paths that answer with an error."""
    valid_tokens: set[str] = field(default_factory=set)
    num_tokens: int = 0
    """Given out so far."""
    token_status: int = 200


@contextmanager
def metadata_server(port: int = 0) -> Iterator[Metadata]:
    metadata = Metadata()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            if self.path != "/latest/api/token" or metadata.token_status != 200:
                self._answer(metadata.token_status if metadata.token_status != 200 else 404)
                return
            if not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
                self._answer(400)
                return
            metadata.num_tokens += 1
            token = f"token-{metadata.num_tokens}=="
            metadata.valid_tokens.add(token)
            self._answer(200, token)

        def do_GET(self) -> None:
            path = self.path.removeprefix("/latest/meta-data/")
            if self.headers.get("X-aws-ec2-metadata-token") not in metadata.valid_tokens:
                self._answer(401)
            elif path in metadata.statuses:
                self._answer(metadata.statuses[path])
            elif path in metadata.values:
                self._answer(200, metadata.values[path])
            else:
                self._answer(404)

        def _answer(self, status: int, text: str = "") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    metadata.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield metadata
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
